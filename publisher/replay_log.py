"""The batches a publisher has numbered: those that still have to go out live, and those a replay can be given.

One bounded log serves both, and everybody who reads it does so by number, as a cursor. The live cursor belongs to the
log, because the log may not forget a batch that has yet to go out; replays keep their own cursors and may find that
the log no longer reaches back to them. Pure: payloads are opaque bytes, and there are no threads, clocks or sockets.
"""

from __future__ import annotations

from collections import deque

__all__ = ["Numbered", "ReplayLog"]

Numbered = tuple[int, bytes]
"""A sequence number and its payload."""


class ReplayLog:
    """Payloads numbered from 0 without gaps, the oldest forgotten first.

    ``keep`` batches are kept for replay. At most ``queue_limit`` batches wait to go out live; while more than ``keep``
    wait, they are all kept, so that the log never holds more than the larger of the two.
    """

    def __init__(self, *, keep: int, queue_limit: int) -> None:
        assert keep >= 1, f"keep must be at least 1 batch, got {keep}"
        assert queue_limit >= 1, f"queue_limit must be at least 1 batch, got {queue_limit}"
        self._keep = keep
        self._queue_limit = queue_limit
        self._payloads: deque[bytes] = deque()
        self._first_seq = 0
        self._live_seq = 0

    @property
    def first_seq(self) -> int:
        """Number of the oldest batch still here."""
        return self._first_seq

    @property
    def next_seq(self) -> int:
        """Number that the next batch will get."""
        return self._first_seq + len(self._payloads)

    @property
    def pending(self) -> int:
        """Batches that have yet to go out live."""
        return self.next_seq - self._live_seq

    def append(self, payload: bytes) -> int:
        """Number a payload. Modifies the live cursor where the queue is full: returns how many batches it skips."""
        self._payloads.append(payload)
        skipped = max(0, self.pending - self._queue_limit)
        self._live_seq += skipped
        self._forget()
        return skipped

    def take_live(self, limit: int) -> list[Numbered]:
        """The next batches to go out live, at most ``limit``. Moves the live cursor past them."""
        taken = self.read(self._live_seq, stop=self.next_seq, limit=limit)
        self._live_seq += len(taken)
        self._forget()
        return taken

    def read(self, start: int, *, stop: int, limit: int) -> list[Numbered]:
        """Batches numbered in [start, stop), in order, at most ``limit``; those the log has forgotten are missing."""
        begin = max(start, self._first_seq)
        end = min(stop, self.next_seq, begin + limit)
        return [(seq, self._payloads[seq - self._first_seq]) for seq in range(begin, end)]

    def _forget(self) -> None:
        while len(self._payloads) > self._keep and self._first_seq < self._live_seq:
            self._payloads.popleft()
            self._first_seq += 1

    def check_invariants(self) -> None:
        """For tests: the cursors are in order and the log is within its bounds."""
        assert 0 <= self._first_seq <= self._live_seq <= self.next_seq
        assert self.pending <= self._queue_limit
        assert len(self._payloads) <= max(self._keep, self._queue_limit)
