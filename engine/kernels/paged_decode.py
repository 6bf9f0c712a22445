"""Attention of single queries over paged keys and values: what one rank computes of a decode step.

Each query belongs to another sequence and sees the first ``length`` tokens of that sequence's pages, so the same
function serves a whole cache and a rank's shard of one: a shard differs only in its lengths, of which some may be 0.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.kernels.cpu_attention import paged_decode_cpu
from engine.kernels.paged_decode_compiled import is_usable, paged_decode_compiled

__all__ = ["paged_decode", "paged_decode_reference"]


def paged_decode(
    queries: Tensor, keys: Tensor, values: Tensor, tables: Tensor, lengths: Tensor
) -> tuple[Tensor, Tensor]:
    """Partial attention with its log-sum-exp, on the device where the cache is.

    Args:
        queries: ``[batch, heads, head_dim]``; heads share KV heads in contiguous runs.
        keys: ``[pages, page_size, kv_heads, head_dim]``.
        values: as ``keys``.
        tables: page ids of each sequence in order, ``[batch, columns]``; columns past the length are ignored but
            must be page ids.
        lengths: tokens each query sees, ``[batch]``.

    Returns:
        Output ``[batch, heads, head_dim]`` and LSE ``[batch, heads]`` (natural logarithm of the sum of exponentials
        of the scores, scaled by ``head_dim ** -0.5``). A query that sees nothing gets output 0 and LSE -inf.
    """
    if queries.is_cuda:
        from engine.kernels.paged_decode_triton import paged_decode_triton

        return paged_decode_triton(queries, keys, values, tables, lengths)
    if is_usable(queries, keys):
        return paged_decode_compiled(queries, keys, values, tables, lengths)
    if queries.device.type == "cpu":
        return paged_decode_cpu(queries, keys, values, tables, lengths)
    return paged_decode_reference(queries, keys, values, tables, lengths)


def paged_decode_reference(
    queries: Tensor, keys: Tensor, values: Tensor, tables: Tensor, lengths: Tensor
) -> tuple[Tensor, Tensor]:
    """`paged_decode` in plain torch: gathers whole pages, padded to the longest sequence of the batch."""
    batch, heads, head_dim = queries.shape
    kv_heads = keys.shape[2]
    # index_select copies whole pages, four times as fast as indexing does.
    keys = keys.index_select(0, tables.flatten()).view(batch, -1, kv_heads, head_dim)
    values = values.index_select(0, tables.flatten()).view(batch, -1, kv_heads, head_dim)
    grouped = (queries * head_dim**-0.5).view(batch, kv_heads, heads // kv_heads, head_dim)
    scores = grouped @ keys.permute(0, 2, 3, 1)  # [batch, kv_heads, heads / kv_heads, tokens]
    unseen = torch.arange(keys.shape[1], device=keys.device) >= lengths.unsqueeze(1)
    scores = scores.masked_fill_(unseen[:, None, None, :], float("-inf"))
    lse = scores.logsumexp(dim=-1)
    output = (scores.softmax(dim=-1) @ values.transpose(1, 2)).view(batch, heads, head_dim)
    output = torch.where(lengths[:, None, None] > 0, output, 0.0)  # the softmax over nothing is NaN
    return output, lse.view(batch, heads)
