"""Rotary positions in Hugging Face's half-split form: dimension ``i`` turns together with ``i + head_dim / 2``."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from engine.model.config import LinearRope, ListedRope, Llama3Rope, ModelConfig

__all__ = ["Rope"]


class Rope:
    """Cosines and sines of every position of a context, computed in float64 and kept in float32.

    They are kept as wide as a head, the sines of its first half negated: ``states * cos + swapped halves * sin``.
    """

    def __init__(self, model: ModelConfig, *, device: torch.device) -> None:
        positions = torch.arange(model.max_context, dtype=torch.float64)
        angles = torch.outer(positions, _speeds(model))
        cos, sin = angles.cos().float(), angles.sin().float()
        self._cos = torch.cat([cos, cos], dim=-1).to(device)  # [max_context, head_dim]
        self._sin = torch.cat([-sin, sin], dim=-1).to(device)

    def at(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines for ``positions`` ``[T]``, each ``[T, 1, head_dim]``."""
        return self._cos.index_select(0, positions).unsqueeze(1), self._sin.index_select(0, positions).unsqueeze(1)

    def rotate(self, states: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
        """Turn ``states`` ``[T, heads, head_dim]`` by what ``at`` gave for their positions."""
        cos, sin = rotation
        swapped = states.roll(states.shape[-1] // 2, dims=-1)
        return torch.addcmul(states * cos, swapped.to(cos.dtype), sin).to(states.dtype)


def _speeds(model: ModelConfig) -> Tensor:
    """Radians that each dimension turns from one position to the next, ``[head_dim / 2]``."""
    exponents = torch.arange(0, model.head_dim, 2, dtype=torch.float64) / model.head_dim
    speeds: Tensor = model.rope_theta**-exponents
    match model.rope_scaling:
        case None:
            return speeds
        case LinearRope(factor):
            return speeds / factor
        case ListedRope(factors):
            return speeds / torch.tensor(factors, dtype=torch.float64)
        case Llama3Rope() as scaling:
            return _llama3_speeds(speeds, scaling)


def _llama3_speeds(speeds: Tensor, scaling: Llama3Rope) -> Tensor:
    turns = scaling.original_context * speeds / (2 * math.pi)
    fast = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    fast = fast.clamp(0.0, 1.0)
    return speeds * (fast + (1 - fast) / scaling.factor)
