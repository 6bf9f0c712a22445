"""A rank's states of a model's linear layers, by slot. Every rank has them all: DCP does not share states out.

Knows nothing of who holds a slot.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["StatePool", "pool_row"]


def pool_row(slot: int | None) -> int:
    """The row of the pool that ``slot`` is; None is the state before the first token, which every pool holds."""
    return 0 if slot is None else slot + 1


class StatePool:
    """``slots`` states of shape ``shape`` for each of ``num_layers`` layers, float32; all zero at first.

    Rows are numbered by `pool_row`; row 0 stays zero.
    """

    def __init__(self, *, num_layers: int, slots: int, shape: Sequence[int], device: torch.device) -> None:
        rows = pool_row(slots - 1) + 1
        self._states = torch.zeros((num_layers, rows, *shape), device=device, dtype=torch.float32)

    @property
    def nbytes(self) -> int:
        """Memory that the pool takes."""
        return self._states.nbytes

    def read(self, layer: int, rows: Tensor) -> Tensor:
        """A copy of the states in ``rows`` ``[n]``: ``[n, *shape]``."""
        return self._states[layer].index_select(0, rows)

    def write(self, layer: int, rows: Tensor, states: Tensor) -> None:
        """Put ``states`` ``[n, *shape]`` into ``rows`` ``[n]``, none of which is row 0."""
        self._states[layer].index_copy_(0, rows, states)
