"""`engine.kernels.paged_decode` as a Triton kernel: one program attends with all queries that share a KV head."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = ["paged_decode_kernel", "paged_decode_triton"]

_BLOCK_TOKENS = 32


@triton.jit  # type: ignore[untyped-decorator]
def paged_decode_kernel(  # type: ignore[no-untyped-def]
    queries,
    keys,
    values,
    tables,
    lengths,
    output,
    lse,
    scale,
    table_stride,
    num_kv_heads,
    page_size: tl.constexpr,
    group: tl.constexpr,
    head_dim: tl.constexpr,
    block_group: tl.constexpr,
    block_dim: tl.constexpr,
    block_tokens: tl.constexpr,
):
    """Program ``(sequence, KV head)``; ``group`` query heads share it. All tensors are contiguous but the table's rows.

    Online softmax over blocks of tokens, in float32 with elementwise products: groups are too small for ``tl.dot``.
    """
    sequence = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1)
    length = tl.load(lengths + sequence)

    members = tl.arange(0, block_group)
    dims = tl.arange(0, block_dim)
    inside = (members < group)[:, None] & (dims < head_dim)[None, :]
    heads = (sequence * num_kv_heads + kv_head) * group + members
    query_places = heads[:, None] * head_dim + dims[None, :]
    query = tl.load(queries + query_places, mask=inside, other=0.0).to(tl.float32) * scale

    # The smallest finite float32 stands for "nothing yet": it keeps -inf minus -inf, which is NaN, out of the sums.
    largest = tl.full([block_group], -3.4028234663852886e38, dtype=tl.float32)
    total = tl.zeros([block_group], dtype=tl.float32)
    acc = tl.zeros([block_group, block_dim], dtype=tl.float32)
    for start in range(0, length, block_tokens):
        tokens = start + tl.arange(0, block_tokens)
        seen = tokens < length
        pages = tl.load(tables + sequence * table_stride + tokens // page_size, mask=seen, other=0).to(tl.int64)
        rows = (pages * page_size + tokens % page_size) * num_kv_heads + kv_head
        places = rows[:, None] * head_dim + dims[None, :]
        present = seen[:, None] & (dims < head_dim)[None, :]
        key = tl.load(keys + places, mask=present, other=0.0).to(tl.float32)
        value = tl.load(values + places, mask=present, other=0.0).to(tl.float32)

        scores = tl.sum(query[:, None, :] * key[None, :, :], axis=2)
        scores = tl.where(seen[None, :], scores, float("-inf"))
        new_largest = tl.maximum(largest, tl.max(scores, axis=1))
        weights = tl.exp(scores - new_largest[:, None])
        shrink = tl.exp(largest - new_largest)
        acc = acc * shrink[:, None] + tl.sum(weights[:, :, None] * value[None, :, :], axis=1)
        total = total * shrink + tl.sum(weights, axis=1)
        largest = new_largest

    empty = total == 0.0
    safe_total = tl.where(empty, 1.0, total)
    tl.store(output + query_places, acc / safe_total[:, None], mask=inside)
    tl.store(lse + heads, tl.where(empty, float("-inf"), largest + tl.log(safe_total)), mask=members < group)


def paged_decode_triton(
    queries: Tensor, keys: Tensor, values: Tensor, tables: Tensor, lengths: Tensor
) -> tuple[Tensor, Tensor]:
    """`engine.kernels.paged_decode.paged_decode` on the GPU; same arguments and results."""
    batch, heads, head_dim = queries.shape
    page_size, kv_heads = keys.shape[1:3]
    assert keys.is_contiguous(), "the key pages of a layer must be contiguous"
    assert values.is_contiguous(), "the value pages of a layer must be contiguous"
    queries = queries.contiguous()
    output = torch.empty_like(queries)
    lse = torch.empty((batch, heads), device=queries.device, dtype=torch.float32)
    paged_decode_kernel[(batch, kv_heads)](
        queries,
        keys,
        values,
        tables,
        lengths,
        output,
        lse,
        head_dim**-0.5,
        tables.stride(0),
        kv_heads,
        page_size=page_size,
        group=heads // kv_heads,
        head_dim=head_dim,
        block_group=triton.next_power_of_2(heads // kv_heads),
        block_dim=triton.next_power_of_2(head_dim),
        block_tokens=_BLOCK_TOKENS,
    )
    return output, lse
