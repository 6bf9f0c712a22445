"""Reads a ``.kvtrace`` record by record, in bounded memory: one record and one zstd window at a time.

What comes out fits together: every lane that a record means has been named before it. Damage costs what cannot be
unpacked without it, and a `Skipped` stands where that was.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import zstandard

from router.trace.chunk import MAX_RECORD_BYTES, Chunk, Hole, TraceFileError, read_chunks, read_magic
from router.trace.records import Began, LaneNamed, Record, Reminder, Skipped, StreamJoined, decode_record

__all__ = ["TraceReader", "Unread"]

_STEP_BYTES = 4096
"""Unpacked piece by piece, so that a few bytes cannot claim all memory unseen: a piece becomes 128 MiB at most."""


class Unread(msgspec.Struct, frozen=True, kw_only=True):
    """``size`` bytes of a file, from ``offset`` on."""

    offset: int
    size: int


class TraceReader:
    """The records of a file, as often as it is iterated over.

    ``torn``: the last reading ended inside a record. ``skipped`` is what it could not read, so far. ``place`` says
    where the latest record read lies.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.torn = False
        self.skipped: list[Unread] = []
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
            TraceFileError: the file cannot be read, is no trace, or holds what no recorder wrote.
        """
        self.skipped = []
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
            for number, found in enumerate(read_chunks(file, name=str(self.path)), start=1):
                self.place = f"{self.path}, record {number} at byte {found.offset}"
                yield from self._told(self._records(unpacker, order, found))
                end = found.end
            yield from self._told(order.rest())
            self.torn = os.fstat(file.fileno()).st_size > end

    def _told(self, records: Sequence[Record]) -> Iterator[Record]:
        for record in records:
            if isinstance(record, Skipped):
                self.skipped.append(Unread(offset=record.offset, size=record.size))
            yield record

    def _records(self, unpacker: _Unpacker, order: _Order, found: Chunk | Hole) -> Sequence[Record]:
        if isinstance(found, Hole):
            return order.skip(Skipped(offset=found.offset, size=found.end - found.offset))
        try:
            return order.after(decode_record(unpacker.unpack(found)))
        except (zstandard.ZstdError, msgspec.MsgspecError, UnicodeDecodeError, ValueError, RecursionError) as error:
            raise TraceFileError(f"{self.place}: {error}") from None


class _Order:
    """Which lanes have been named, and joined, by the recorder that writes now."""

    def __init__(self) -> None:
        self._began: float | None = None
        self._named: set[int] = set()
        self._joined: dict[int, StreamJoined] = {}
        self._skipped: list[Record] = []

    def skip(self, skipped: Skipped) -> Sequence[Record]:
        """Something cannot be read: it is told when it is known which lanes that concerns."""
        self._skipped.append(skipped)
        return []

    def after(self, record: Record) -> Sequence[Record]:
        """What is to be told now that this record comes next.

        Raises:
            ValueError: it cannot stand here.
        """
        if isinstance(record, Reminder):
            return [*self._reminded(record), *self.rest()] if self._skipped else []
        self._check(record)
        return [*self.rest(), record]

    def rest(self) -> list[Record]:
        """What has still to be told."""
        rest, self._skipped = self._skipped, []
        return rest

    def _check(self, record: Record) -> None:
        match record:
            case Began():
                self._began, self._named, self._joined = record.at, set(), {}
            case LaneNamed():
                self._named.add(record.lane)
            case StreamJoined():
                self._joined[record.lane] = record
        if self._began is None:
            raise ValueError("the first record is not a recorder's beginning")
        unknown = {getattr(record, "lane", None), *getattr(record, "lanes", ())} - self._named - {None}
        if unknown:
            raise ValueError(f"lane {min(unknown)} has not been named")

    def _reminded(self, reminder: Reminder) -> Iterator[Record]:
        """The recorder's beginning, its lanes and streams, as far as they were in what cannot be read."""
        told: list[Record] = []
        if reminder.began != self._began:
            told.append(Began(at=reminder.began, program="?", version="?", source="its beginning cannot be read"))
        told += [lane for lane in reminder.lanes if told or lane.lane not in self._named]
        told += [joined for joined in reminder.joined if told or self._joined.get(joined.lane) != joined]
        for record in told:
            self._check(record)
            yield record


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
