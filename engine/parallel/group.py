"""What a rank needs of the ranks beside it. Forward passes are written against this, whatever carries the ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:  # an engine starts rank processes without importing torch itself
    from torch import Tensor

__all__ = ["Group", "all_gather_along", "sum_in_order"]


class Group(Protocol):
    """A set of ranks that take part in every collective, in the same order.

    Whether a rank enters a collective may depend only on values that all ranks know, or the others wait in vain.
    """

    @property
    def rank(self) -> int:
        """This rank, in ``[0, size)``."""
        ...

    @property
    def size(self) -> int:
        """Ranks in the group."""
        ...

    def all_gather(self, tensor: Tensor) -> Tensor:
        """Everybody's ``tensor`` in rank order, ``[size, *tensor.shape]``; the shape is the same on every rank.

        ``tensor`` must stay unchanged until the next collective.
        """
        ...

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """The sum of everybody's ``tensor``, the same to the last bit on every rank; a tensor of its own.

        ``tensor`` must stay unchanged until the next collective.
        """
        ...

    def subgroup(self, *, size: int) -> Group:
        """The run of ``size`` neighbouring ranks that this rank is in, as a group of its own; ``size`` divides.

        Every rank of this group asks for the same subgroups in the same order.
        """
        ...


def all_gather_along(group: Group, tensor: Tensor, *, dim: int) -> Tensor:
    """Everybody's ``tensor`` side by side along ``dim``, in rank order, as ``torch.cat`` of them all would be.

    Collectives stack whole tensors, so along any but the first dimension the parts have to be moved to their places.
    """
    gathered = group.all_gather(tensor)  # [size, *tensor.shape]
    dim %= tensor.dim()
    return gathered.movedim(0, dim).flatten(dim, dim + 1)


def sum_in_order(tensors: Sequence[Tensor]) -> Tensor:
    """The sum of one tensor of each rank, in rank order, so that all ranks round alike."""
    total = tensors[0].clone()
    for other in tensors[1:]:
        total += other
    return total
