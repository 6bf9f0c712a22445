"""Attention of a run of new queries of one sequence over its paged keys and values: what one rank computes of prefill.

The causal mask is a count: query ``i`` sees the first ``visible[i]`` tokens in the pages. On a rank's shard that is the
number of own tokens at or before the query's position, so context, new tokens and shards need no cases of their own.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.kernels.cpu_attention import extend_attention_cpu

__all__ = ["extend_attention", "extend_attention_reference"]

_LOWEST = torch.finfo(torch.float32).min


def extend_attention(
    queries: Tensor, keys: Tensor, values: Tensor, table: Tensor, visible: Tensor, *, longest: int
) -> tuple[Tensor, Tensor]:
    """Partial attention with its log-sum-exp, on the device where the cache is.

    Args:
        queries: ``[tokens, heads, head_dim]``; heads share KV heads in contiguous runs.
        keys: ``[pages, page_size, kv_heads, head_dim]``.
        values: as ``keys``.
        table: page ids in order, ``[columns]``.
        visible: keys each query sees, ``[tokens]``; from one query to the next it stays or grows by one.
        longest: keys the last query sees.

    Returns:
        Output ``[tokens, heads, head_dim]`` and LSE ``[tokens, heads]``, as `paged_decode` defines them.
    """
    if queries.is_cuda:
        from engine.kernels.extend_attention_triton import extend_attention_triton

        return extend_attention_triton(queries, keys, values, table, visible)
    if queries.device.type == "cpu":
        return extend_attention_cpu(queries, keys, values, table, visible, longest=longest)
    return extend_attention_reference(queries, keys, values, table, visible, longest=longest)


def extend_attention_reference(
    queries: Tensor, keys: Tensor, values: Tensor, table: Tensor, visible: Tensor, *, longest: int
) -> tuple[Tensor, Tensor]:
    """`extend_attention` in plain torch. Memory for the scores grows with ``tokens * longest``."""
    tokens, heads, head_dim = queries.shape
    if longest == 0:
        return torch.zeros_like(queries), queries.new_full((tokens, heads), float("-inf"))
    page_size, kv_heads = keys.shape[1:3]
    table = table[: -(-longest // page_size)]
    keys = keys.index_select(0, table).flatten(0, 1)[:longest]  # [longest, kv_heads, head_dim]
    values = values.index_select(0, table).flatten(0, 1)[:longest]

    grouped = (queries * head_dim**-0.5).view(tokens, kv_heads, heads // kv_heads, head_dim)
    scores = grouped.permute(1, 2, 0, 3).flatten(1, 2) @ keys.permute(1, 2, 0)  # [kv_heads, group * tokens, longest]
    scores = scores.view(kv_heads, heads // kv_heads, tokens, longest)
    diagonal = max(0, longest - tokens + 1)  # every query sees the keys before it
    unseen = torch.arange(diagonal, longest, device=keys.device) >= visible.unsqueeze(1)
    scores[..., diagonal:].masked_fill_(unseen, float("-inf"))

    largest = scores.amax(dim=-1, keepdim=True).clamp_min_(_LOWEST)  # finite, so that rows that see nothing give 0
    weights = scores.sub_(largest).exp_()
    total = weights.sum(dim=-1, keepdim=True)
    lse = (largest + total.log()).squeeze(-1)
    output = weights.flatten(1, 2) @ values.transpose(0, 1)  # [kv_heads, group * tokens, head_dim]
    # The largest weight of a row is 1, so only the total of a row that sees nothing is below 1.
    output = output.view(kv_heads, heads // kv_heads, tokens, head_dim) / total.clamp_min(1.0)
    return output.permute(2, 0, 1, 3).flatten(1, 2), lse.permute(2, 0, 1).flatten(1, 2)
