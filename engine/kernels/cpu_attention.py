"""Decode and extend attention on CPUs, by torch's own flash attention, which gives the log-sum-exp too.

The operator is the one behind ``scaled_dot_product_attention``; that function keeps the log-sum-exp to itself. It takes
keys and values where they lie, so pages are copied once, when they are gathered. All queries that share a KV head are
computed with it at once, and masks are made only where what queries see has no simpler form. The references beside this
module are slower by a fifth to a half, and agree.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["extend_attention_cpu", "paged_decode_cpu"]

_INF = float("inf")


def paged_decode_cpu(
    queries: Tensor, keys: Tensor, values: Tensor, tables: Tensor, lengths: Tensor
) -> tuple[Tensor, Tensor]:
    """`engine.kernels.paged_decode.paged_decode`; same arguments and results."""
    batch, heads, head_dim = queries.shape
    kv_heads = keys.shape[2]
    keys, values = (pages.view(batch, -1, kv_heads, head_dim) for pages in _gathered(keys, values, tables.flatten()))
    alone = batch == 1
    seen = int(lengths) if alone else keys.shape[1]
    output, lse = _attend(
        queries.view(batch, kv_heads, heads // kv_heads, head_dim),
        keys[:, :seen].transpose(1, 2),
        values[:, :seen].transpose(1, 2),
        mask=None if alone else _mask(lengths.view(batch, 1, 1, 1), seen, queries.dtype),
    )
    output, lse = output.reshape(batch, heads, head_dim), lse.reshape(batch, heads)
    return (output, lse) if alone else _without_blind(output, lse, lengths)


def extend_attention_cpu(
    queries: Tensor, keys: Tensor, values: Tensor, table: Tensor, visible: Tensor, *, longest: int
) -> tuple[Tensor, Tensor]:
    """`engine.kernels.extend_attention.extend_attention`; same arguments and results."""
    tokens, heads, head_dim = queries.shape
    page_size, kv_heads = keys.shape[1:3]
    group = heads // kv_heads
    pages = _gathered(keys, values, table[: -(-longest // page_size)])
    keys, values = (each.flatten(0, 1)[:longest] for each in pages)  # [longest, kv_heads, head_dim]
    triangle = longest == tokens and int(visible[0]) == 1  # nothing before the first query, nothing left out
    output, lse = _attend(
        queries.view(tokens, kv_heads, group, head_dim).permute(1, 2, 0, 3),
        keys.transpose(0, 1).unsqueeze(1).expand(-1, group, -1, -1),
        values.transpose(0, 1).unsqueeze(1).expand(-1, group, -1, -1),
        mask=None if triangle else _mask(visible.view(1, 1, tokens, 1), longest, queries.dtype),
        causal=triangle,
    )
    output = output.permute(2, 0, 1, 3).reshape(tokens, heads, head_dim)
    return _without_blind(output, lse.permute(2, 0, 1).reshape(tokens, heads), visible)


def _gathered(keys: Tensor, values: Tensor, pages: Tensor) -> tuple[Tensor, Tensor]:
    """Those pages of both, one after the other."""
    # index_select copies whole pages, four times as fast as indexing does.
    return keys.index_select(0, pages), values.index_select(0, pages)


def _attend(
    queries: Tensor, keys: Tensor, values: Tensor, *, mask: Tensor | None, causal: bool = False
) -> tuple[Tensor, Tensor]:
    """``[a, b, queries, head_dim]`` over ``[a, b, keys, head_dim]``; output and LSE, float32, of each query."""
    if keys.shape[2] == 0:
        return torch.zeros_like(queries), queries.new_full(queries.shape[:3], -_INF, dtype=torch.float32)
    output, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        queries, keys, values, 0.0, causal, attn_mask=mask, scale=queries.shape[3] ** -0.5
    )
    return output, lse


def _mask(visible: Tensor, length: int, dtype: torch.dtype) -> Tensor:
    """What is added to scores over ``length`` keys, of which each query sees the first ``visible``."""
    unseen = torch.arange(length) >= visible
    return torch.zeros(unseen.shape, dtype=dtype).masked_fill_(unseen, -_INF)


def _without_blind(output: Tensor, lse: Tensor, visible: Tensor) -> tuple[Tensor, Tensor]:
    """What the operator says of a query that sees nothing is not to be relied on."""
    if visible.all():
        return output, lse
    sees = (visible > 0).unsqueeze(1)
    return torch.where(sees.unsqueeze(2), output, 0.0), torch.where(sees, lse, -_INF)
