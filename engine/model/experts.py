"""A mixture of SwiGLU experts, as one rank computes it: its features of every expert.

All ranks route alike, for routing is computed by each of them from the same states. Knows nothing of how the sum over
ranks is made.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from torch import Tensor

from engine.model.hybrid_weights import ExpertWeights
from engine.model.linear import Linear

__all__ = ["ExpertsLayer"]


class ExpertsLayer:
    """Each token goes to ``experts_per_token`` experts, and their results are weighted by what the router thought."""

    def __init__(self, *, weights: ExpertWeights, experts_per_token: int) -> None:
        self._chosen_count = experts_per_token
        self._router = Linear(weights.router)
        self._experts = [(Linear(gate_up), Linear(down)) for gate_up, down in weights.experts]

    def __call__(self, normed: Tensor) -> Tensor:
        """This rank's part of ``[T, hidden]``, of normed states."""
        chances = F.softmax(self._router(normed).float(), dim=-1)
        shares, chosen = chances.topk(self._chosen_count, dim=-1)
        shares = (shares / shares.sum(dim=-1, keepdim=True)).to(normed.dtype)
        result = torch.zeros_like(normed)
        for index, (gate_up, down) in enumerate(self._experts):
            rows, places = (chosen == index).nonzero(as_tuple=True)
            if len(rows):
                gate, up = gate_up(normed[rows]).chunk(2, dim=-1)
                result.index_add_(0, rows, down(F.silu(gate) * up) * shares[rows, places].unsqueeze(-1))
        return result
