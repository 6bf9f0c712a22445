"""Rotary positions in Hugging Face's half-split form: dimension ``i`` turns together with ``i + head_dim / 2``."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.model.config import ModelConfig

__all__ = ["Rope"]


class Rope:
    """Cosines and sines of every position of a context, computed in float64 and kept in float32."""

    def __init__(self, model: ModelConfig, *, device: torch.device) -> None:
        exponents = torch.arange(0, model.head_dim, 2, dtype=torch.float64) / model.head_dim
        positions = torch.arange(model.max_context, dtype=torch.float64)
        angles = torch.outer(positions, model.rope_theta**-exponents)
        self._cos = angles.cos().float().to(device)  # [max_context, head_dim / 2]
        self._sin = angles.sin().float().to(device)

    def at(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines for ``positions`` ``[T]``, each ``[T, 1, head_dim / 2]``."""
        return self._cos.index_select(0, positions).unsqueeze(1), self._sin.index_select(0, positions).unsqueeze(1)

    def rotate(self, states: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
        """Turn ``states`` ``[T, heads, head_dim]`` by what ``at`` gave for their positions."""
        cos, sin = rotation
        first, second = states.chunk(2, dim=-1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
