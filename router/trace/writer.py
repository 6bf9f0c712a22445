"""Writes a ``.kvtrace``. Each record is in the file before the next one is made: a killed recorder loses one at most.

A file that exists is gone on with behind its last whole record, never begun anew; a new one is for its owner's eyes,
since events hold token ids. A disk that fills up ends the recording and takes nothing back: what was written of the
record that did not fit is cut off again.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

import zstandard

from router.trace.chunk import MAGIC, TraceFileError, chunk_bytes, read_chunks, read_magic
from router.trace.records import Record, encode_record

__all__ = ["TraceWriter"]

_LEVEL = 3


class TraceWriter:
    """One recorder's file; a context that closes it. ``end`` is its length in bytes, ``records`` were written here.

    Raises:
        TraceFileError: the file cannot be opened, is no trace or a damaged one, or another recorder writes to it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.records = 0
        self._packer = zstandard.ZstdCompressor(level=_LEVEL, write_content_size=False).compressobj()
        try:
            self._file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "r+b", buffering=0)
        except OSError as error:
            raise TraceFileError(f"cannot write {path}: {error.strerror}") from None
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
        raw = encode_record(record)
        packed = self._packer.compress(raw) + self._packer.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
        self._append(chunk_bytes(packed, raw_length=len(raw), begins_frame=not self.records))
        self.records += 1

    def close(self) -> None:
        """Let the file go, on the disk as far as the system can. A second call does nothing."""
        if not self._file.closed:
            with contextlib.suppress(OSError):  # a pipe, or a disk that reports now what nobody can repair
                os.fsync(self._file.fileno())
            self._file.close()

    def _open(self) -> int:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            end = self._whole_length()
            self._file.truncate(end)
            self._file.seek(end)
            self.end = end
            if not end:
                self._append(MAGIC)
        except BlockingIOError:
            raise TraceFileError(f"{self.path} is being written by another recorder") from None
        except OSError as error:
            raise TraceFileError(f"cannot write {self.path}: {error.strerror}") from None
        return self.end

    def _whole_length(self) -> int:
        """Where the last whole record ends; 0 for a file without a whole magic."""
        with os.fdopen(os.dup(self._file.fileno()), "rb") as file:
            file.seek(0)
            if not read_magic(file, name=str(self.path)):
                return 0
            return _last_end(file, name=str(self.path))

    def _append(self, data: bytes) -> None:
        view = memoryview(data)
        try:
            while view:
                view = view[self._file.write(view) or 0 :]
        except OSError as error:
            with contextlib.suppress(OSError):  # the reader leaves a torn record out as well
                self._file.truncate(self.end)
            self._file.close()
            raise TraceFileError(f"cannot write {self.path} past byte {self.end}: {error.strerror}") from None
        self.end += len(data)


def _last_end(file: BinaryIO, *, name: str) -> int:
    end = len(MAGIC)
    for chunk in read_chunks(file, name=name):
        end = chunk.end
    return end
