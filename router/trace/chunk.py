"""The frame around each record of a ``.kvtrace``: whole or not there, and found again by its byte offset.

A file is ``KVTRACE`` and a version byte, then chunks::

    packed length, bit 31: begins a zstd frame | raw length | CRC-32 of packed | CRC-32 of these 12 bytes | packed

all little-endian u32. A chunk is one record. Chunks of one zstd frame share its history, so that small records compress
as if they were one text; each recorder begins a frame of its own, and new ones on its way. What is cut off inside a
chunk is *torn*: a recorder was killed, or is writing now. A sum that does not fit is damage, and a length is believed
only if its sum does: damage must not look like a torn end, which the next recorder cuts off. Reading goes on behind
damage with the next whole chunk that begins a frame, since nothing else can be unpacked without what went before.
Knows nothing of what records say.
"""

from __future__ import annotations

import os
import re
import struct
import zlib
from collections.abc import Iterator
from typing import BinaryIO

import msgspec

__all__ = [
    "MAGIC",
    "MAX_RECORD_BYTES",
    "NAME",
    "Chunk",
    "Hole",
    "TraceFileError",
    "chunk_bytes",
    "read_chunks",
    "read_magic",
]

VERSION = 1
NAME = b"KVTRACE"
MAGIC = NAME + bytes([VERSION])
MAX_RECORD_BYTES = 2**29
"""Unpacked. A batch of events travels in 256 MiB at most."""

_HEAD = struct.Struct("<III")
_SUM = struct.Struct("<I")
_HEADER_BYTES = _HEAD.size + _SUM.size
_BEGINS_FRAME = 2**31
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
"""What a zstd frame begins with, so the bytes behind the header of the chunk that begins it (RFC 8878, 3.1.1)."""

_LOOK_BYTES = 2**20


class TraceFileError(Exception):
    """A trace that cannot be read or written, in one line that names the file and, where there is one, the place."""


class Chunk(msgspec.Struct, frozen=True):
    """One record, packed. ``offset`` is where the chunk begins in the file, ``end`` where the next one would."""

    packed: bytes
    raw_length: int
    begins_frame: bool
    offset: int

    @property
    def end(self) -> int:
        """Byte offset behind it."""
        return self.offset + _HEADER_BYTES + len(self.packed)


class Hole(msgspec.Struct, frozen=True):
    """Bytes that cannot be read, from ``offset`` on up to ``end``."""

    offset: int
    end: int


def chunk_bytes(packed: bytes, *, raw_length: int, begins_frame: bool) -> bytes:
    """A record as it stands in the file."""
    assert raw_length <= MAX_RECORD_BYTES, f"a record of {raw_length} bytes is above {MAX_RECORD_BYTES}"
    assert len(packed) < _BEGINS_FRAME, f"a packed record of {len(packed)} bytes does not fit its length field"
    flag = _BEGINS_FRAME if begins_frame else 0
    head = _HEAD.pack(len(packed) | flag, raw_length, zlib.crc32(packed))
    return head + _SUM.pack(zlib.crc32(head)) + packed


def read_magic(file: BinaryIO, *, name: str) -> bool:
    """Read a trace's first bytes; False where the file is empty, or ends inside them.

    Raises:
        TraceFileError: it is no trace, or one of a version that is not known here.
    """
    magic = file.read(len(MAGIC))
    if not NAME.startswith(magic[: len(NAME)]):
        raise TraceFileError(f"{name} is no .kvtrace file: it begins with {magic!r}")
    if len(magic) < len(MAGIC):
        return False
    if magic != MAGIC:
        raise TraceFileError(f"{name} is a .kvtrace of version {magic[-1]}; known here is version {VERSION}")
    return True


def read_chunks(file: BinaryIO, *, name: str) -> Iterator[Chunk | Hole]:
    """The whole chunks behind the magic, in order, and the holes of damage between them; a torn end is left out.

    Raises:
        TraceFileError: the file cannot be read, or is damaged and cannot be searched, as a pipe.
    """
    offset = len(MAGIC)
    try:
        while found := _read_chunk(file, offset):
            yield found
            offset = found.end
    except OSError as error:
        raise TraceFileError(f"{name}, at byte {offset}: {error.strerror or error}") from None


def _read_chunk(file: BinaryIO, offset: int) -> Chunk | Hole | None:
    """What begins here: a chunk, or a hole, behind which the file then stands; None at the end, torn or not."""
    header = file.read(_HEADER_BYTES)
    if len(header) < _HEADER_BYTES:
        return None
    length, raw_length, packed_sum = _HEAD.unpack_from(header)
    if not _believed(header):
        return _hole(file, offset)
    packed = file.read(length & ~_BEGINS_FRAME)
    if len(packed) < length & ~_BEGINS_FRAME:
        return _hole(file, offset, torn=True) if file.seekable() else None
    if zlib.crc32(packed) != packed_sum:
        return _hole(file, offset)
    return Chunk(packed, raw_length, bool(length & _BEGINS_FRAME), offset)


def _believed(header: bytes) -> bool:
    """Whether a header's sum is its own, and the record not larger than any."""
    _, raw_length, _ = _HEAD.unpack_from(header)
    intact: bool = _SUM.unpack_from(header, _HEAD.size) == (zlib.crc32(header[: _HEAD.size]),)
    return intact and raw_length <= MAX_RECORD_BYTES


def _hole(file: BinaryIO, offset: int, *, torn: bool = False) -> Hole | None:
    """From a chunk that is not whole to the next that begins a frame. ``torn``: None, unless there is such a one."""
    for begin in _frame_places(file, offset):
        file.seek(begin)
        header = file.read(_HEADER_BYTES)
        length, _, packed_sum = _HEAD.unpack_from(header)
        if length & _BEGINS_FRAME and _believed(header):
            packed = file.read(length & ~_BEGINS_FRAME)
            if len(packed) == length & ~_BEGINS_FRAME and zlib.crc32(packed) == packed_sum:
                file.seek(begin)
                return Hole(offset, begin)
    return None if torn else Hole(offset, file.seek(0, os.SEEK_END))


def _frame_places(file: BinaryIO, offset: int) -> Iterator[int]:
    """Where behind this place a chunk may stand that begins a frame. The file may be moved between two of them."""
    start, window = offset, b""
    while True:
        file.seek(start + len(window))
        more = file.read(_LOOK_BYTES)
        if not more:
            return
        window += more
        for match in re.finditer(re.escape(_ZSTD_MAGIC), window):
            if match.start() >= _HEADER_BYTES:
                yield start + match.start() - _HEADER_BYTES
        kept = window[-_HEADER_BYTES - len(_ZSTD_MAGIC) + 1 :]
        start, window = start + len(window) - len(kept), kept
