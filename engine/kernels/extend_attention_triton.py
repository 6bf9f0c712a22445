"""`engine.kernels.extend_attention` as a Triton kernel: one program attends with a tile of queries to one KV head.

A tile holds neighbouring tokens, each with all query heads that share the KV head, so that keys are loaded once for
all of them.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.paged_tile_triton import finished, fold_tile, load_tile

__all__ = ["extend_attention_kernel", "extend_attention_triton"]

_BLOCK_QUERIES = 64
_BLOCK_TOKENS = 32
_SMALLEST_DOT = 16
_WARPS = 8  # with 4, head dimensions of 128 do not fit into registers


@triton.jit  # type: ignore[untyped-decorator]
def extend_attention_kernel(  # type: ignore[no-untyped-def]
    queries,
    keys,
    values,
    table,
    visible,
    output,
    lse,
    scale,
    num_tokens,
    page_size: tl.constexpr,
    group: tl.constexpr,
    head_dim: tl.constexpr,
    block_queries: tl.constexpr,
    block_dim: tl.constexpr,
    block_tokens: tl.constexpr,
):
    """Program ``(tile, KV head)``: queries ``[tile * block_queries, ...)`` of the ``tokens * group``. All contiguous.

    Keys are read up to what the tile's last query sees: none sees more.
    """
    kv_head = tl.program_id(1)
    num_kv_heads = tl.num_programs(1)
    dims = tl.arange(0, block_dim)
    members = tl.program_id(0) * block_queries + tl.arange(0, block_queries)
    there = members < num_tokens * group
    sees = tl.load(visible + members // group, mask=there, other=0)  # [block_queries]
    heads = (members // group).to(tl.int64) * num_kv_heads * group + kv_head * group + members % group
    inside = there[:, None] & (dims < head_dim)[None, :]
    query = tl.load(queries + heads[:, None] * head_dim + dims[None, :], mask=inside, other=0.0)

    # The smallest finite float32 stands for "nothing yet": it keeps -inf minus -inf, which is NaN, out of the sums.
    largest = tl.full([block_queries], -3.4028234663852886e38, dtype=tl.float32)
    total = tl.zeros([block_queries], dtype=tl.float32)
    acc = tl.zeros([block_queries, block_dim], dtype=tl.float32)
    last = tl.max(sees, axis=0)
    for start in range(0, last, block_tokens):
        tokens = start + tl.arange(0, block_tokens)
        present = tokens < last
        key, value = load_tile(keys, values, table, tokens, present, dims, kv_head, num_kv_heads, page_size, head_dim)
        seen = tokens[None, :] < sees[:, None]
        largest, total, acc = fold_tile(query, key, value, seen, scale, largest, total, acc)

    result, result_lse = finished(largest, total, acc)
    tl.store(output + heads[:, None] * head_dim + dims[None, :], result, mask=inside)
    tl.store(lse + heads, result_lse, mask=there)


def extend_attention_triton(
    queries: Tensor, keys: Tensor, values: Tensor, table: Tensor, visible: Tensor
) -> tuple[Tensor, Tensor]:
    """`engine.kernels.extend_attention.extend_attention` on the GPU; same arguments and results."""
    tokens, heads, head_dim = queries.shape
    page_size, kv_heads = keys.shape[1:3]
    assert keys.is_contiguous(), "the key pages of a layer must be contiguous"
    assert values.is_contiguous(), "the value pages of a layer must be contiguous"
    queries = queries.contiguous()
    output = torch.empty_like(queries)
    lse = torch.empty((tokens, heads), device=queries.device, dtype=torch.float32)
    group = heads // kv_heads
    extend_attention_kernel[(triton.cdiv(tokens * group, _BLOCK_QUERIES), kv_heads)](
        queries,
        keys,
        values,
        table,
        visible,
        output,
        lse,
        head_dim**-0.5,
        tokens,
        page_size=page_size,
        group=group,
        head_dim=head_dim,
        block_queries=_BLOCK_QUERIES,
        block_dim=max(_SMALLEST_DOT, triton.next_power_of_2(head_dim)),
        block_tokens=_BLOCK_TOKENS,
        num_warps=_WARPS,
    )
    return output, lse
