"""What the paged attention kernels share: loading a tile of keys or values, and folding it into a running softmax.

Products are `tl.dot`s in the type of the cache, summed in float32. Those of float32 are made of three TF32 products on
the tensor cores, which keeps float32's precision; multiplied plainly, tiles of queries would not fit into registers.
Under Triton 3.7's interpreter a dot of bfloat16 gives wrong numbers, so interpreted tests take other types.
"""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["finished", "fold_tile", "load_tile"]


@triton.jit  # type: ignore[untyped-decorator]
def load_tile(  # type: ignore[no-untyped-def]
    keys, values, table, tokens, present, dims, kv_head, num_kv_heads, page_size: tl.constexpr, head_dim: tl.constexpr
):
    """Keys and values ``[tokens, dims]`` of those ``tokens`` of a sequence that are ``present``, 0 for the others."""
    pages = tl.load(table + tokens // page_size, mask=present, other=0).to(tl.int64)
    rows = (pages * page_size + tokens % page_size) * num_kv_heads + kv_head
    places = rows[:, None] * head_dim + dims[None, :]
    mask = present[:, None] & (dims < head_dim)[None, :]
    return tl.load(keys + places, mask=mask, other=0.0), tl.load(values + places, mask=mask, other=0.0)


@triton.jit
def fold_tile(query, key, value, seen, scale, largest, total, acc):  # type: ignore[no-untyped-def]
    """The running softmax of ``[rows]`` queries with one more tile of keys, of which row ``r`` sees ``seen[r]``.

    ``acc`` and ``total`` are kept relative to the largest score so far, so that one pass is enough.
    """
    scores = tl.dot(query, tl.trans(key), input_precision="tf32x3") * scale
    scores = tl.where(seen, scores, float("-inf"))
    new_largest = tl.maximum(largest, tl.max(scores, axis=1))
    weights = tl.exp(scores - new_largest[:, None])
    shrink = tl.exp(largest - new_largest)
    added = tl.dot(weights.to(value.dtype), value, input_precision="tf32x3")
    return new_largest, total * shrink + tl.sum(weights, axis=1), acc * shrink[:, None] + added


@triton.jit
def finished(largest, total, acc):  # type: ignore[no-untyped-def]
    """Output and log-sum-exp; rows that saw nothing get 0 and -inf."""
    empty = total == 0.0
    safe_total = tl.where(empty, 1.0, total)
    return acc / safe_total[:, None], tl.where(empty, float("-inf"), largest + tl.log(safe_total))
