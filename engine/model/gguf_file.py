"""The header of a GGUF file: metadata, and where each tensor's bytes are. The file is mapped, not read.

Versions 2 and 3, little-endian (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md). The ``gguf`` package reads
the same header, but value by value: seconds for a vocabulary of 50,000, which every replica would pay at start. Knows
nothing of what the values mean.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from engine.model.config import ModelError

__all__ = ["GgufFile", "GgufTensor"]

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_ALIGNMENT_KEY, _ALIGNMENT = "general.alignment", 32


class GgufTensor(msgspec.Struct, frozen=True, kw_only=True):
    """One tensor: shape in torch's order, ggml's number for its type, and where its bytes start in the file."""

    shape: tuple[int, ...]
    type: int
    start: int


class GgufFile:
    """An open file.

    Raises:
        ModelError: no such file, or no GGUF that can be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                self.bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:  # ValueError: empty files cannot be mapped
            raise ModelError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
        try:
            self.metadata, self.tensors = _Header(self.bytes).read()
        except KeyError as error:
            raise ModelError(f"{path} is no GGUF file that can be read: it has values of type {error}") from None
        except (struct.error, UnicodeDecodeError, _BadHeaderError) as error:
            raise ModelError(f"{path} is no GGUF file that can be read: {error}") from None


class _BadHeaderError(ValueError):
    """A header that cannot be."""


class _Header:
    """Reads on and on from the start of the file."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._at = 0

    def read(self) -> tuple[Mapping[str, Any], Mapping[str, GgufTensor]]:
        """Metadata, and tensors by name."""
        magic = self._take(len(_MAGIC))
        if magic != _MAGIC:
            raise _BadHeaderError(f"it starts with {magic!r}, not {_MAGIC!r}")
        version = self._number("I")
        if version not in _VERSIONS:
            raise _BadHeaderError(f"its version is {version}, 2 and 3 can be read")
        tensor_count, value_count = self._number("Q"), self._number("Q")
        metadata = {self._string(): self._value(self._number("I")) for _ in range(self._checked(value_count))}
        infos = [self._tensor_info() for _ in range(self._checked(tensor_count))]
        alignment = metadata.get(_ALIGNMENT_KEY, _ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1:
            raise _BadHeaderError(f"{_ALIGNMENT_KEY} is {alignment!r}")
        data_start = -(-self._at // alignment) * alignment
        return metadata, {name: msgspec.structs.replace(info, start=data_start + info.start) for name, info in infos}

    def _tensor_info(self) -> tuple[str, GgufTensor]:
        """Its start is counted from where the tensors' bytes start."""
        name = self._string()
        sizes = self._numbers("Q", self._number("I"))
        return name, GgufTensor(shape=tuple(reversed(sizes)), type=self._number("I"), start=self._number("Q"))

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind != _ARRAY:
            return self._number(_SCALARS[kind])
        kind, count = self._number("I"), self._number("Q")
        if kind == _STRING:
            return [self._string() for _ in range(self._checked(count))]
        return list(self._numbers(_SCALARS[kind], count))

    def _string(self) -> str:
        return self._take(self._number("Q")).decode()

    def _number(self, code: str) -> Any:
        return self._numbers(code, 1)[0]

    def _numbers(self, code: str, count: int) -> tuple[Any, ...]:
        layout = f"<{count}{code}"
        return struct.unpack(layout, self._take(struct.calcsize(layout)))

    def _take(self, count: int) -> bytes:
        taken = self._data[self._at : self._at + self._checked(count)]
        self._at += count
        return taken

    def _checked(self, count: int) -> int:
        """``count`` things of at least a byte each are still to come, if the header can be believed."""
        if count > len(self._data) - self._at:
            raise _BadHeaderError(f"it ends within its header, at byte {len(self._data)}")
        return count
