"""What ``contract._keys`` does, in Python: for where it was not built, and as the rule that it is held to.

Ids travel packed as u32, keys as u64, both as this machine writes them. What does not fit is answered by None, and is
then somebody else's to read in full.
"""

from __future__ import annotations

import sys
from array import array
from typing import Annotated

import msgspec
from xxhash import xxh3_64_intdigest

__all__ = ["chain", "pack_list", "read_hashes", "read_ids"]

_U64_MASK = 2**64 - 1
_IDS = msgspec.msgpack.Decoder(list[Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]])
_HASHES = msgspec.msgpack.Decoder(list[int])


def chain(ids: bytes | array[int], width: int, parent: int, /) -> bytes:
    """Keys of the full blocks of ``width`` ids."""
    view, step, keys = memoryview(_little_endian(ids)).cast("B"), 4 * width, array("Q")
    for start in range(0, len(view) - len(view) % step, step):
        parent = xxh3_64_intdigest(view[start : start + step], parent)
        keys.append(parent)
    return keys.tobytes()


def _little_endian(ids: bytes | array[int]) -> bytes | array[int]:
    if sys.byteorder == "little":
        return ids
    swapped = array("I", bytes(ids))
    swapped.byteswap()
    return swapped


def pack_list(ids: object, /) -> bytes | None:
    """A list of ids, or None unless each is an int that fits."""
    if not isinstance(ids, list):
        return None
    try:
        return array("I", ids).tobytes()
    except (OverflowError, TypeError):
        return None


def read_ids(raw: bytes, /) -> bytes | None:
    """A msgpack array of ids, or None unless each is an int that fits."""
    try:
        return array("I", _IDS.decode(raw)).tobytes()
    except msgspec.MsgspecError:
        return None


def read_hashes(raw: bytes, /) -> list[int] | None:
    """A msgpack array of ints as unsigned 64-bit ones, negative ones by their bits, or None unless all are ints."""
    try:
        return [number & _U64_MASK for number in _HASHES.decode(raw)]
    except msgspec.MsgspecError:
        return None
