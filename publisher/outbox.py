"""The replay log as threads share it: any number of them publish, one sends.

The lock is held for the few microseconds of an append or of one burst of reads, never while anything is encoded, sent
or logged, so a publishing thread waits for nobody.
"""

from __future__ import annotations

import threading

from publisher.counters import PublisherCounters
from publisher.errors import PublisherError
from publisher.replay_log import Numbered, ReplayLog
from publisher.wakeup import Wakeup

__all__ = ["Outbox"]


class Outbox:
    """A ``ReplayLog`` behind a lock, which wakes the sender when there is something new."""

    def __init__(self, log: ReplayLog, *, counters: PublisherCounters, wakeup: Wakeup) -> None:
        self._log = log
        self._counters = counters
        self._wakeup = wakeup
        self._lock = threading.Lock()
        self._sender_rests = False
        self._closed = False

    @property
    def closed(self) -> bool:
        """Whether nothing more can be appended."""
        return self._closed

    @property
    def first_seq(self) -> int:
        """Number of the oldest batch a replay can still be given."""
        return self._log.first_seq

    @property
    def next_seq(self) -> int:
        """Number that the next batch will get."""
        with self._lock:
            return self._log.next_seq

    def append(self, payload: bytes) -> None:
        """Number a payload, keep it, and see to it that it is sent.

        Raises:
            PublisherError: the outbox is closed.
        """
        with self._lock:
            if self._closed:
                raise PublisherError("the publisher is closed")
            self._counters.skipped += self._log.append(payload)
            self._counters.published += 1
            wake, self._sender_rests = self._sender_rests, False
        if wake:
            self._wakeup.set()

    def take_live(self, limit: int) -> list[Numbered]:
        """For the sender: the next batches to go out live, at most ``limit``."""
        with self._lock:
            return self._log.take_live(limit)

    def read(self, start: int, *, stop: int, limit: int) -> list[Numbered]:
        """For replays: batches numbered in [start, stop), as far as the log has them, at most ``limit``."""
        with self._lock:
            return self._log.read(start, stop=stop, limit=limit)

    def rest(self) -> bool:
        """For the sender, before it waits: whether there is nothing to send. If so, the next append will wake it."""
        with self._lock:
            self._sender_rests = not self._closed and self._log.pending == 0
            return self._sender_rests

    def close(self) -> None:
        """Refuse further appends, and wake the sender so that it finishes."""
        with self._lock:
            self._closed = True
        self._wakeup.set()

    def abandon(self) -> None:
        """For the sender, when it ends: what still waits will not go out any more, and counts as skipped."""
        with self._lock:
            self._counters.skipped += len(self._log.take_live(self._log.pending))
