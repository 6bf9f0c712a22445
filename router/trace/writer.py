"""Writes a ``.kvtrace``. Each record is in the file before the next one is made: a killed recorder loses one at most.

A file that exists is gone on with behind its last whole record, never begun anew; a new one is for its owner's eyes,
since events hold token ids. A disk that fills up ends the recording and takes nothing back: what was written of the
record that did not fit is cut off again.

Now and then a zstd frame ends and another begins, with a `Reminder` in it: behind damage a reader goes on there. Frames
grow with the file, so that damage costs an eighth of a small one and little of a large one.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

import zstandard

from router.trace.chunk import MAGIC, Hole, TraceFileError, chunk_bytes, read_chunks, read_magic
from router.trace.records import Began, LaneNamed, Record, Reminder, StreamJoined, StreamLeft, encode_record

__all__ = ["TraceWriter"]

_LEVEL = 3
_SMALLEST_FRAME, _LARGEST_FRAME = 4_096, 262_144
_FRAMES_OF_A_FILE = 8
_REMINDERS = 4
"""A frame holds as much as so many of its reminder, which is long in a large fleet."""


class TraceWriter:
    """One recorder's file; a context that closes it. ``end`` is its length in bytes, ``records`` were written here.

    ``called`` is what messages call it, where it will stand elsewhere.

    Raises:
        TraceFileError: the file cannot be opened, is no trace or a damaged one, or another recorder writes to it.
    """

    def __init__(self, path: Path, *, called: Path | None = None) -> None:
        self._name = str(called or path)
        self.records = 0
        self._zstd = zstandard.ZstdCompressor(level=_LEVEL, write_content_size=False)
        self._frame = self._zstd.compressobj()
        self._begins_frame = True
        self._raw = 0
        self._room = _SMALLEST_FRAME
        self._began: float | None = None
        self._lanes: dict[int, LaneNamed] = {}
        self._joined: dict[int, StreamJoined] = {}
        try:
            self._file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "r+b", buffering=0)
        except OSError as error:
            raise TraceFileError(f"cannot write {self._name}: {error.strerror}") from None
        try:
            self.end = self._open()
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def write(self, record: Record) -> None:
        """Append a record; it is in the file when this returns, though not yet on the disk.

        Raises:
            TraceFileError: it could not be written whole; the file ends with the record before it, and is closed.
        """
        if self._room <= 0:
            self._begin_frame()
        self._room -= self._pack(record)
        self._remember(record)
        self.records += 1

    def close(self) -> None:
        """Let the file go, on the disk as far as the system can. A second call does nothing."""
        if not self._file.closed:
            with contextlib.suppress(OSError):  # a disk that reports now what nobody can repair
                os.fsync(self._file.fileno())
            self._file.close()

    def _begin_frame(self) -> None:
        """End a zstd frame: what is written from here on can be read without what is before."""
        self._frame, self._begins_frame = self._zstd.compressobj(), True
        self._room = min(max(self._raw // _FRAMES_OF_A_FILE, _SMALLEST_FRAME), _LARGEST_FRAME)
        if self._began is not None:
            lanes, joined = list(self._lanes.values()), list(self._joined.values())
            reminder = self._pack(Reminder(began=self._began, lanes=lanes, joined=joined))
            self._room = max(self._room, _REMINDERS * reminder)

    def _remember(self, record: Record) -> None:
        """Keep what readers must be reminded of."""
        match record:
            case Began():
                self._began, self._lanes, self._joined = record.at, {}, {}
            case LaneNamed():
                self._lanes[record.lane] = record
            case StreamJoined():
                self._joined[record.lane] = record
            case StreamLeft():
                self._joined.pop(record.lane, None)

    def _pack(self, record: Record) -> int:
        """Append a record to the frame; its bytes before packing."""
        raw = encode_record(record)
        packed = self._frame.compress(raw) + self._frame.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
        self._append(chunk_bytes(packed, raw_length=len(raw), begins_frame=self._begins_frame))
        self._begins_frame = False
        self._raw += len(raw)
        return len(raw)

    def _open(self) -> int:
        if not stat.S_ISREG(os.fstat(self._file.fileno()).st_mode):
            raise TraceFileError(f"cannot write {self._name}: it is no regular file")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            end = self._whole_length()
            self._file.truncate(end)
            self._file.seek(end)
            self.end = end
            if not end:
                self._append(MAGIC)
        except BlockingIOError:
            raise TraceFileError(f"{self._name} is being written by another recorder") from None
        except OSError as error:
            raise TraceFileError(f"cannot write {self._name}: {error.strerror}") from None
        return self.end

    def _whole_length(self) -> int:
        """Where the last whole record ends; 0 for a file without a whole magic."""
        with os.fdopen(os.dup(self._file.fileno()), "rb") as file:
            file.seek(0)
            if not read_magic(file, name=self._name):
                return 0
            return _last_end(file, name=self._name)

    def _append(self, data: bytes) -> None:
        view = memoryview(data)
        try:
            while view:
                view = view[self._file.write(view) or 0 :]
        except OSError as error:
            with contextlib.suppress(OSError):  # the reader leaves a torn record out as well
                self._file.truncate(self.end)
            self._file.close()
            raise TraceFileError(f"cannot write {self._name} past byte {self.end}: {error.strerror}") from None
        self.end += len(data)


def _last_end(file: BinaryIO, *, name: str) -> int:
    end = len(MAGIC)
    for found in read_chunks(file, name=name):
        if isinstance(found, Hole):
            raise TraceFileError(f"{name} is damaged at byte {found.offset}: record into another file")
        end = found.end
    return end
