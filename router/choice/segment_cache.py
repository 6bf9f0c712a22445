"""Token ids of pieces of text that came lately. Bounded in bytes; the longest unused go first. Thread-safe."""

from __future__ import annotations

import sys
from array import array
from collections import OrderedDict
from threading import Lock

__all__ = ["SegmentCache"]

_Piece = tuple[int, str]
ENTRY_BYTES = 250
"""An entry's own weight besides its text and ids: two tuples and its place in the dictionary."""

LARGEST_SHARE = 4
"""A piece above the bound's fourth would throw out too much, and is not kept."""


class SegmentCache:
    """``bytes_held`` never exceeds ``max_bytes``."""

    def __init__(self, *, max_bytes: int) -> None:
        self.bytes_held = 0
        self._max_bytes = max_bytes
        self._entries: OrderedDict[_Piece, array[int]] = OrderedDict()
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, piece: _Piece) -> array[int] | None:
        """Ids of a piece; whoever gets them does not change them."""
        with self._lock:
            ids = self._entries.get(piece)
            if ids is not None:
                self._entries.move_to_end(piece)
            return ids

    def put(self, piece: _Piece, ids: array[int]) -> None:
        """Keep a piece's ids."""
        size = _size(piece, ids)
        if size * LARGEST_SHARE > self._max_bytes:
            return
        with self._lock:
            if piece in self._entries:
                return  # another thread was faster
            self._entries[piece] = ids
            self.bytes_held += size
            while self.bytes_held > self._max_bytes:
                self.bytes_held -= _size(*self._entries.popitem(last=False))


def _size(piece: _Piece, ids: array[int]) -> int:
    return sys.getsizeof(piece[1]) + sys.getsizeof(ids) + ENTRY_BYTES
