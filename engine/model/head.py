"""The output projection: every rank multiplies with its share of the vocabulary's rows, and gets everybody's logits."""

from __future__ import annotations

import torch.nn.functional as F  # noqa: N812 - its usual name
from torch import Tensor

from engine.model.linear import Linear
from engine.parallel.group import Group, all_gather_along

__all__ = ["Head"]


class Head:
    """``rows`` ``[own rows, hidden]`` are this rank's of ``vocab_size``; ``group`` is the whole world."""

    def __init__(self, rows: Tensor, *, vocab_size: int, group: Group) -> None:
        self._linear = Linear(rows)
        self._vocab_size = vocab_size
        self._group = group
        self._longest_share = -(-vocab_size // group.size)

    def __call__(self, states: Tensor) -> Tensor:
        """``[samples, vocab]`` of final states ``[samples, hidden]``, float32. A collective: all ranks take part."""
        part = self._linear(states)
        if self._group.size == 1:
            return part.float()
        padded = F.pad(part, (0, self._longest_share - part.shape[1]))  # only the last shares are shorter
        return all_gather_along(self._group, padded, dim=1)[:, : self._vocab_size].float()
