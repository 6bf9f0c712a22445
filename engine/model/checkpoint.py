"""Named tensors of a model, read a share at a time: what every kind of model file is turned into.

Names and orientation are Hugging Face's for Llama (``model.layers.0.self_attn.q_proj.weight`` is ``[out, in]``). A rank
reads only the rows and columns that it holds, where the file's format allows. Knows nothing of what tensors are for.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from torch import Tensor

from engine.model.config import ModelError

__all__ = ["Checkpoint", "CheckpointError", "TensorTable", "check_shape", "cut"]


class CheckpointError(ModelError):
    """A model file that does not hold what its model needs; the message is one line that names file and tensor."""


class Checkpoint(Protocol):
    """An open model file, or several that belong together."""

    @property
    def names(self) -> Collection[str]:
        """All tensors in it."""
        ...

    def read(
        self, name: str, *, shape: Sequence[int], rows: range | None = None, columns: range | None = None
    ) -> Tensor:
        """``rows`` and ``columns`` (None: all) of a tensor whose whole shape is ``shape``, on the CPU.

        Raises:
            CheckpointError: there is no such tensor, or its shape is another.
        """
        ...


class TensorTable:
    """A `Checkpoint` in memory. ``origin`` is what errors call it."""

    def __init__(self, tensors: Mapping[str, Tensor], *, origin: str) -> None:
        self._tensors = tensors
        self._origin = origin

    @property
    def names(self) -> Collection[str]:
        """All tensors in it."""
        return self._tensors.keys()

    def read(
        self, name: str, *, shape: Sequence[int], rows: range | None = None, columns: range | None = None
    ) -> Tensor:
        """A view of the tensor; see `Checkpoint`."""
        tensor = self._tensors.get(name)
        check_shape(name, None if tensor is None else tensor.shape, shape, origin=self._origin)
        assert tensor is not None
        return cut(tensor, rows=rows, columns=columns)


def cut(tensor: Tensor, *, rows: range | None, columns: range | None) -> Tensor:
    """Those rows and columns of ``tensor``, as a view."""
    if rows is not None:
        tensor = tensor[rows.start : rows.stop]
    if columns is not None:
        tensor = tensor[:, columns.start : columns.stop]
    return tensor


def check_shape(name: str, found: Sequence[int] | None, expected: Sequence[int], *, origin: str) -> None:
    """Refuse a tensor that is missing (``found`` is None) or of another shape.

    Raises:
        CheckpointError: naming ``origin``, tensor and shapes.
    """
    if found is None:
        raise CheckpointError(f"{origin}: tensor {name} is missing, the model needs one of shape {list(expected)}")
    if list(found) != list(expected):
        raise CheckpointError(f"{origin}: tensor {name} has shape {list(found)}, the model needs {list(expected)}")
