"""Linear attention with a decay a head (lightning attention): what one layer computes of states and new tokens.

Each head keeps one state ``S`` of ``[key_dim, value_dim]`` in place of keys and values: a token makes it
``decay * S + k v^T`` and reads ``q S``. For a run of tokens the same is computed in tiles: inside a tile as attention
whose scores fade with distance, between tiles through the state (Qin et al., Lightning Attention-2,
arXiv:2401.04658). Plain torch on any device, float32.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["Decay", "linear_decode", "linear_extend"]

_TILE = 64


class Decay:
    """How fast the heads of one layer forget: ``exp(-slope)`` a token, ``slopes`` being ``[heads]``."""

    def __init__(self, slopes: Tensor) -> None:
        slopes = slopes.float().view(-1, 1, 1)
        steps = torch.arange(1, _TILE + 1, device=slopes.device)
        distance = steps.unsqueeze(1) - steps
        self.slopes = slopes
        self.token = torch.exp(-slopes)  # [heads, 1, 1]
        self._since_start = torch.exp(-slopes * steps.unsqueeze(1))  # [heads, tile, 1]
        self._until_end = torch.exp(-slopes * (_TILE - steps.unsqueeze(1)))  # [heads, tile, 1]
        self._between = torch.exp(-slopes * distance.clamp_min(0)) * (distance >= 0)  # [heads, tile, tile]

    def since_start(self, tokens: int) -> Tensor:
        """What is left of the state before ``tokens`` tokens when each of them reads it, ``[heads, tokens, 1]``."""
        return self._since_start[:, :tokens]

    def until_end(self, tokens: int) -> Tensor:
        """What is left of each of ``tokens`` tokens behind the last of them, ``[heads, tokens, 1]``."""
        return self._until_end[:, _TILE - tokens :]

    def between(self, tokens: int) -> Tensor:
        """What row's token sees of column's, 0 for later ones, ``[heads, tokens, tokens]``."""
        return self._between[:, :tokens, :tokens]


def linear_decode(
    queries: Tensor, keys: Tensor, values: Tensor, states: Tensor, *, decay: Decay
) -> tuple[Tensor, Tensor]:
    """One token each of ``batch`` sequences.

    Args:
        queries: ``[batch, heads, key_dim]``.
        keys: as ``queries``.
        values: ``[batch, heads, value_dim]``.
        states: ``[batch, heads, key_dim, value_dim]``, those before the tokens.
        decay: of the layer.

    Returns:
        Output ``[batch, heads, value_dim]``, and the states behind the tokens.
    """
    states = decay.token * states + keys.unsqueeze(-1) * values.unsqueeze(-2)
    return (queries.unsqueeze(-2) @ states).squeeze(-2), states


def linear_extend(
    queries: Tensor, keys: Tensor, values: Tensor, state: Tensor, *, decay: Decay
) -> tuple[Tensor, Tensor]:
    """A run of ``tokens`` neighbouring tokens of one sequence.

    Args:
        queries: ``[tokens, heads, key_dim]``.
        keys: as ``queries``.
        values: ``[tokens, heads, value_dim]``.
        state: ``[heads, key_dim, value_dim]``, the one before the run.
        decay: of the layer.

    Returns:
        Output ``[tokens, heads, value_dim]``, and the state behind the run.
    """
    outputs = []
    for start in range(0, len(queries), _TILE):
        tile = slice(start, start + _TILE)
        q, k, v = (each[tile].transpose(0, 1) for each in (queries, keys, values))  # [heads, tokens of the tile, dim]
        tokens = q.shape[1]
        inside = (q @ k.transpose(1, 2) * decay.between(tokens)) @ v
        outputs.append(inside + (q * decay.since_start(tokens)) @ state)
        fresh = (k * decay.until_end(tokens)).transpose(1, 2) @ v
        state = torch.exp(-decay.slopes * tokens) * state + fresh
    return torch.cat(outputs, dim=1).transpose(0, 1), state
