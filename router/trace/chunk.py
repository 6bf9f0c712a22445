"""The frame around each record of a ``.kvtrace``: whole or not there, and found again by its byte offset.

A file is ``KVTRACE`` and a version byte, then chunks::

    packed length, bit 31: begins a zstd frame | raw length | CRC-32 of packed | CRC-32 of these 12 bytes | packed

all little-endian u32. A chunk is one record. Chunks of one zstd frame share its history, so that small records compress
as if they were one text; each recorder begins a frame of its own. What is cut off inside a chunk is *torn*: a recorder
was killed, or is writing now. A sum that does not fit is damage, and a length is believed only if its sum does: damage
must not look like a torn end, which the next recorder cuts off. Knows nothing of what records say.
"""

from __future__ import annotations

import itertools
import struct
import zlib
from collections.abc import Iterator
from typing import BinaryIO

import msgspec

__all__ = ["MAGIC", "MAX_RECORD_BYTES", "NAME", "Chunk", "TraceFileError", "chunk_bytes", "read_chunks", "read_magic"]

VERSION = 1
NAME = b"KVTRACE"
MAGIC = NAME + bytes([VERSION])
MAX_RECORD_BYTES = 2**29
"""Unpacked. A batch of events travels in 256 MiB at most."""

_HEAD = struct.Struct("<III")
_SUM = struct.Struct("<I")
_HEADER_BYTES = _HEAD.size + _SUM.size
_BEGINS_FRAME = 2**31


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


def read_chunks(file: BinaryIO, *, name: str) -> Iterator[Chunk]:
    """The whole chunks behind the magic, in order; a torn one at the end is left out.

    Raises:
        TraceFileError: the file cannot be read, or a chunk is damaged.
    """
    offset = len(MAGIC)
    for number in itertools.count(1):
        try:
            chunk = _read_chunk(file, offset)
        except (OSError, ValueError) as error:
            raise TraceFileError(f"{name}, record {number} at byte {offset}: {error}") from None
        if chunk is None:
            return
        yield chunk
        offset = chunk.end


def _read_chunk(file: BinaryIO, offset: int) -> Chunk | None:
    """The chunk that begins here; None where the file ends first.

    Raises:
        ValueError: it is damaged.
    """
    header = file.read(_HEADER_BYTES)
    if len(header) < _HEADER_BYTES:
        return None
    length, raw_length, packed_sum = _HEAD.unpack_from(header)
    if _SUM.unpack_from(header, _HEAD.size) != (zlib.crc32(header[: _HEAD.size]),) or raw_length > MAX_RECORD_BYTES:
        raise ValueError("damaged, the checksum of its header does not fit")
    packed = file.read(length & ~_BEGINS_FRAME)
    if len(packed) < length & ~_BEGINS_FRAME:
        return None
    if zlib.crc32(packed) != packed_sum:
        raise ValueError("damaged, its checksum does not fit")
    return Chunk(packed, raw_length, bool(length & _BEGINS_FRAME), offset)
