"""Block ids of content: what a block of tokens is called, and how ids of one width become ids of another.

A name is a 32-bit hash of the block alone. Only blocks behind one prefix are ever compared, so two of them are taken
for one with a chance of one in four billion, and nothing need be remembered to name them.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from xxhash import xxh32_intdigest

__all__ = ["MAX_ID", "named", "resized", "resizes"]

MAX_ID = 2**32 - 1


def named(content: bytes, *, block_bytes: int) -> tuple[int, ...]:
    """Ids of the full blocks of a prompt, whose tokens all have the same number of bytes."""
    full = len(content) // block_bytes * block_bytes
    return tuple(xxh32_intdigest(content[start : start + block_bytes]) for start in range(0, full, block_bytes))


def resizes(source: int, target: int) -> bool:
    """Whether ids of blocks of ``source`` tokens say what blocks of ``target`` tokens hold."""
    return target > 0 and (target % source == 0 or source % target == 0)


def resized(ids: Sequence[int], *, source: int, target: int) -> tuple[int, ...]:
    """The same content in blocks of another width; what no longer fills a block is left out."""
    if source == target:
        return tuple(ids)
    if target > source:
        return named(array("I", ids).tobytes(), block_bytes=target // source * array("I").itemsize)
    parts = source // target
    return tuple(xxh32_intdigest(b"%d:%d" % (one, part)) for one in ids for part in range(parts))
