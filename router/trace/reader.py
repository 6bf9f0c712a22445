"""Reads a ``.kvtrace`` record by record, in bounded memory: one record and one zstd window at a time.

What comes out fits together: every lane that a record means has been named before it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import zstandard

from router.trace.chunk import MAX_RECORD_BYTES, Chunk, TraceFileError, read_chunks, read_magic
from router.trace.records import Began, LaneNamed, Record, decode_record

__all__ = ["TraceReader"]

_STEP_BYTES = 4096
"""Unpacked piece by piece, so that a few bytes cannot claim all memory unseen: a piece becomes 128 MiB at most."""


class TraceReader:
    """The records of a file, as often as it is iterated over.

    ``torn``: the last reading ended inside a record. ``place`` says where the latest record read lies.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.torn = False
        self.place = str(path)

    @property
    def size(self) -> int:
        """Bytes of the file.

        Raises:
            TraceFileError: it cannot be looked at.
        """
        try:
            return self.path.stat().st_size
        except OSError as error:
            raise TraceFileError(f"{self.path}: {error.strerror}") from None

    def __iter__(self) -> Iterator[Record]:
        """Records in order.

        Raises:
            TraceFileError: the file cannot be read, is no trace, or is damaged; what was yielded before is good.
        """
        try:
            file = self.path.open("rb")
        except OSError as error:
            raise TraceFileError(f"{self.path}: {error.strerror}") from None
        with file:
            self.torn = not read_magic(file, name=str(self.path))
            if self.torn:
                return
            unpacker, order = _Unpacker(), _Order()
            end = file.tell()
            for number, chunk in enumerate(read_chunks(file, name=str(self.path)), start=1):
                self.place = f"{self.path}, record {number} at byte {chunk.offset}"
                yield self._record(unpacker, order, chunk)
                end = chunk.end
            self.torn = os.fstat(file.fileno()).st_size > end

    def _record(self, unpacker: _Unpacker, order: _Order, chunk: Chunk) -> Record:
        try:
            record = decode_record(unpacker.unpack(chunk))
            order.check(record)
        except (zstandard.ZstdError, msgspec.MsgspecError, UnicodeDecodeError, ValueError, RecursionError) as error:
            raise TraceFileError(f"{self.place}: {error}") from None
        return record


class _Order:
    """Which lanes have been named, by the recorder that writes now."""

    def __init__(self) -> None:
        self._named: set[int] | None = None

    def check(self, record: Record) -> None:
        """Take the next record into account.

        Raises:
            ValueError: it cannot stand here.
        """
        if isinstance(record, Began):
            self._named = set()
        elif self._named is None:
            raise ValueError("the first record is not a recorder's beginning")
        elif isinstance(record, LaneNamed):
            self._named.add(record.lane)
        else:
            unknown = {getattr(record, "lane", None), *getattr(record, "lanes", ())} - self._named - {None}
            if unknown:
                raise ValueError(f"lane {min(unknown)} has not been named")


class _Unpacker:
    """One zstd frame after the other."""

    def __init__(self) -> None:
        self._zstd = zstandard.ZstdDecompressor(max_window_size=MAX_RECORD_BYTES)
        self._frame: zstandard.ZstdDecompressionObj | None = None

    def unpack(self, chunk: Chunk) -> bytes:
        """The record in a chunk.

        Raises:
            ValueError: it belongs to no frame, or is not as long as it says.
            zstandard.ZstdError: it is no zstd.
        """
        if chunk.begins_frame:
            self._frame = self._zstd.decompressobj()
        if self._frame is None:
            raise ValueError("it continues a zstd frame that has not begun")
        pieces, length = [], 0
        for start in range(0, len(chunk.packed), _STEP_BYTES):
            pieces.append(self._frame.decompress(chunk.packed[start : start + _STEP_BYTES]))
            length += len(pieces[-1])
            if length > chunk.raw_length:
                break
        if length != chunk.raw_length:
            raise ValueError(f"it unpacks to {length} bytes or more where {chunk.raw_length} were announced")
        return b"".join(pieces)
