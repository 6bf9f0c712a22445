"""Merge of partial attention outputs by their log-sum-exp, as decode context parallelism needs it.

Each rank attends over its own share of the keys; the softmax over all keys is the mean of the ranks' outputs weighted
by ``exp(lse)``. The guards are vLLM 0.33.0's: an LSE of NaN or +inf counts as -inf (an empty shard may leave anything),
an output of weight 0 takes no part whatever it holds, and where all ranks are empty the result is 0 with LSE -inf.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["merge", "merge_reference"]

_INF = float("inf")


def merge(outputs: Tensor, lses: Tensor) -> tuple[Tensor, Tensor]:
    """The whole attention from its parts, on the device where they are.

    Args:
        outputs: ``[ranks, tokens, heads, head_dim]``.
        lses: ``[ranks, tokens, heads]``, natural logarithms.

    Returns:
        Output ``[tokens, heads, head_dim]`` and LSE ``[tokens, heads]``.
    """
    if outputs.is_cuda:
        from engine.kernels.lse_merge_triton import merge_triton

        return merge_triton(outputs, lses)
    return merge_reference(outputs, lses)


def merge_reference(outputs: Tensor, lses: Tensor) -> tuple[Tensor, Tensor]:
    """`merge` in plain torch."""
    lses = lses.nan_to_num(nan=-_INF, posinf=-_INF, neginf=-_INF)
    weights = lses.softmax(dim=0).nan_to_num(nan=0.0).unsqueeze(-1)
    parts = torch.where(weights > 0, outputs, 0.0) * weights
    return parts.sum(dim=0), lses.logsumexp(dim=0)
