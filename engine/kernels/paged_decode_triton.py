"""`engine.kernels.paged_decode` as a Triton kernel: one program attends with all queries that share a KV head.

A batch of few sequences would leave most of a GPU idle, so sequences are cut into spans that are attended to apart and
merged by log-sum-exp, exactly as the shards of ranks are. How many spans there are depends on shapes only, never on
lengths, which the host does not know; how long they are is each sequence's own, so that a short one in a long table
keeps as many programs busy as it has tiles.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.lse_merge_triton import merge_triton
from engine.kernels.paged_tile_triton import finished, fold_tile, load_tile

__all__ = ["paged_decode_kernel", "paged_decode_triton"]

_BLOCK_TOKENS = 32
_SMALLEST_DOT = 16
_SHORTEST_SPAN = 256
_ENOUGH_PROGRAMS = 264  # two for each of a Hopper's 132 multiprocessors


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
    page_size: tl.constexpr,
    group: tl.constexpr,
    head_dim: tl.constexpr,
    block_group: tl.constexpr,
    block_dim: tl.constexpr,
    block_tokens: tl.constexpr,
):
    """Program ``(sequence, KV head, span)``: ``group`` query heads share the keys of a span of whole tiles.

    ``output`` is ``[spans, batch, heads, head_dim]``, ``lse`` likewise. Contiguous, all but the table's rows.
    """
    sequence = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1)
    num_kv_heads = tl.num_programs(1)
    length = tl.load(lengths + sequence)
    span = tl.cdiv(tl.cdiv(length, block_tokens), tl.num_programs(2)) * block_tokens
    first = tl.program_id(2) * span
    last = tl.minimum(length, first + span)
    table = tables + sequence * table_stride
    members = tl.arange(0, block_group)
    dims = tl.arange(0, block_dim)
    inside = (members < group)[:, None] & (dims < head_dim)[None, :]
    heads = (sequence * num_kv_heads + kv_head) * group + members
    query = tl.load(queries + heads[:, None] * head_dim + dims[None, :], mask=inside, other=0.0)

    # The smallest finite float32 stands for "nothing yet": it keeps -inf minus -inf, which is NaN, out of the sums.
    largest = tl.full([block_group], -3.4028234663852886e38, dtype=tl.float32)
    total = tl.zeros([block_group], dtype=tl.float32)
    acc = tl.zeros([block_group, block_dim], dtype=tl.float32)
    for start in range(first, last, block_tokens):
        tokens = start + tl.arange(0, block_tokens)
        present = tokens < last
        key, value = load_tile(keys, values, table, tokens, present, dims, kv_head, num_kv_heads, page_size, head_dim)
        largest, total, acc = fold_tile(query, key, value, present[None, :], scale, largest, total, acc)

    result, result_lse = finished(largest, total, acc)
    heads += tl.program_id(2) * tl.num_programs(0) * num_kv_heads * group
    tl.store(output + heads[:, None] * head_dim + dims[None, :], result, mask=inside)
    tl.store(lse + heads, result_lse, mask=members < group)


def paged_decode_triton(
    queries: Tensor, keys: Tensor, values: Tensor, tables: Tensor, lengths: Tensor, *, spans: int | None = None
) -> tuple[Tensor, Tensor]:
    """`engine.kernels.paged_decode.paged_decode` on the GPU; same arguments and results.

    Sequences are cut into ``spans``; None: into as many as keep the GPU busy.
    """
    batch, heads, head_dim = queries.shape
    page_size, kv_heads = keys.shape[1:3]
    assert keys.is_contiguous(), "the key pages of a layer must be contiguous"
    assert values.is_contiguous(), "the value pages of a layer must be contiguous"
    if spans is None:
        longest = tables.shape[1] * page_size
        spans = min(triton.cdiv(_ENOUGH_PROGRAMS, batch * kv_heads), triton.cdiv(longest, _SHORTEST_SPAN))
    parts = torch.empty((spans, *queries.shape), device=queries.device, dtype=torch.float32)
    lses = torch.empty((spans, batch, heads), device=queries.device, dtype=torch.float32)
    paged_decode_kernel[(batch, kv_heads, spans)](
        queries.contiguous(),
        keys,
        values,
        tables,
        lengths,
        parts,
        lses,
        head_dim**-0.5,
        tables.stride(0),
        page_size=page_size,
        group=heads // kv_heads,
        head_dim=head_dim,
        block_group=max(_SMALLEST_DOT, triton.next_power_of_2(heads // kv_heads)),
        block_dim=max(_SMALLEST_DOT, triton.next_power_of_2(head_dim)),
        block_tokens=_BLOCK_TOKENS,
    )
    output, lse = (parts[0], lses[0]) if spans == 1 else merge_triton(parts, lses)
    return output.to(queries.dtype), lse
