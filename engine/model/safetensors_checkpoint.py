"""A Hugging Face folder's weights: one ``model.safetensors``, or several that an index lists. Read by slices."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import cast

import msgspec
from safetensors import SafetensorError, safe_open
from torch import Tensor

from engine.model.checkpoint import CheckpointError, check_shape

__all__ = ["SafetensorsCheckpoint"]

_SINGLE, _INDEX = "model.safetensors", "model.safetensors.index.json"


class _Index(msgspec.Struct):
    weight_map: dict[str, str]


class SafetensorsCheckpoint:
    """A `Checkpoint`. Files stay open, and mapped, as long as it lives.

    Raises:
        CheckpointError: no such files, or one that cannot be read.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[str, safe_open] = {}
        self._homes = self._indexed() if (folder / _INDEX).is_file() else self._single()

    @property
    def names(self) -> Collection[str]:
        """All tensors in the files."""
        return self._homes.keys()

    def read(
        self, name: str, *, shape: Sequence[int], rows: range | None = None, columns: range | None = None
    ) -> Tensor:
        """A part of a tensor; no more of the file than that is read. See `Checkpoint`."""
        home = self._homes.get(name)
        found = None if home is None else self._open(home).get_slice(name)  # type: ignore[no-untyped-call]
        check_shape(name, None if found is None else found.get_shape(), shape, origin=str(self._folder / (home or "")))
        assert found is not None
        cuts = (rows, columns)[: len(shape)]
        assert all(cut is None for cut in (rows, columns)[len(shape) :]), f"{name} has {len(shape)} dimensions"
        return cast(Tensor, found[tuple(slice(None) if cut is None else slice(cut.start, cut.stop) for cut in cuts)])

    def _single(self) -> Mapping[str, str]:
        if not (self._folder / _SINGLE).is_file():
            raise CheckpointError(f"{self._folder} has neither {_SINGLE} nor {_INDEX}")
        return dict.fromkeys(_names(self._open(_SINGLE)), _SINGLE)

    def _indexed(self) -> Mapping[str, str]:
        path = self._folder / _INDEX
        try:
            homes = msgspec.json.decode(path.read_bytes(), type=_Index).weight_map
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise CheckpointError(f"{path}: {error}") from None
        for file in sorted(set(homes.values())):
            held = set(_names(self._open(file)))
            for name in sorted(name for name, home in homes.items() if home == file):
                if name not in held:
                    raise CheckpointError(f"{self._folder / file}: tensor {name} is missing, {_INDEX} places it there")
        return homes

    def _open(self, file: str) -> safe_open:
        if file not in self._files:
            try:
                self._files[file] = safe_open(self._folder / file, framework="pt")
            except (OSError, SafetensorError) as error:
                raise CheckpointError(f"{self._folder / file} cannot be read: {error}") from None
        return self._files[file]


def _names(file: safe_open) -> list[str]:
    return list(file.keys())  # type: ignore[no-untyped-call]
