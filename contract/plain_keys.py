"""What ``contract._keys`` does, in Python: for where it was not built, and as the rule that it is held to.

Ids travel packed as u32, keys as u64, both as this machine writes them.
"""

from __future__ import annotations

import sys
from array import array

from xxhash import xxh3_64_intdigest

__all__ = ["chain", "pack_list"]


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
