"""Digests of the batches applied lately, to tell a batch seen before from one that only has the same number.

Sequence numbers are not an epoch: an engine restarted behind the same endpoint counts from 0 again. What a number stood
for is remembered here, within a bound, so that "the same batch again" and "another engine's batch" are told apart.
"""

from __future__ import annotations

from array import array

from xxhash import xxh3_64_intdigest

__all__ = ["RecentBatches"]


class RecentBatches:
    """A ring of the last ``size`` sequence numbers; 16 bytes a batch."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._seqs = array("q")
        self._digests = array("Q")
        self.clear()

    def remember(self, seq: int, payload: bytes) -> None:
        """Note what a sequence number stood for."""
        place = seq % self._size
        self._seqs[place] = seq
        self._digests[place] = xxh3_64_intdigest(payload)

    def same(self, seq: int, payload: bytes) -> bool | None:
        """Whether a batch is the one remembered under its number; None where that is not remembered."""
        place = seq % self._size
        if self._seqs[place] != seq:
            return None
        return self._digests[place] == xxh3_64_intdigest(payload)

    def clear(self) -> None:
        """Forget everything."""
        self._seqs = array("q", [-1]) * self._size
        self._digests = array("Q", [0]) * self._size
