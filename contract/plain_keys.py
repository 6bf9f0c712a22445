"""What ``contract._keys`` does, in Python: for where it was not built, and as the rule that it is held to.

Ids travel packed as u32, keys as u64, both as this machine writes them.
"""

from __future__ import annotations

import functools
import sys
from array import array
from typing import Annotated, Any

import msgspec
from xxhash import xxh3_64_intdigest

__all__ = ["chain", "pack_list", "read_ids", "write_ids"]

MAX_DECODERS = 16
"""One for each size of vocabulary; fleets have few."""


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


def read_ids(json: bytes, below: int, /) -> bytes | None:
    """A JSON array of at least one id, or None unless each is an int in [0, ``below``)."""
    try:
        return array("I", _decoder(below).decode(json)).tobytes()
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, OverflowError):
        return None


def write_ids(ids: bytes | array[int], /) -> bytes:
    """A JSON array of ids."""
    return msgspec.json.encode(array("I", bytes(ids)).tolist())


@functools.lru_cache(MAX_DECODERS)
def _decoder(below: int) -> msgspec.json.Decoder[list[int]]:
    """The range is checked while the ids are read, which costs nothing."""
    ids: Any = list.__class_getitem__(Annotated[int, msgspec.Meta(ge=0, lt=below)])
    return msgspec.json.Decoder(Annotated[ids, msgspec.Meta(min_length=1)])
