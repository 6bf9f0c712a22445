"""Virtual time: what is due when, in order. Knows nothing of what it calls."""

from __future__ import annotations

import heapq
from collections.abc import Callable

__all__ = ["VirtualClock"]


class VirtualClock:
    """``now`` in seconds. Calls due at one time are made in the order in which they were asked for."""

    def __init__(self) -> None:
        self.now = 0.0
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._asked = 0

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        """Make a call in so many seconds."""
        self._asked += 1
        heapq.heappush(self._due, (self.now + seconds, self._asked, call))

    def run_until(self, time: float) -> None:
        """Make every call that is due up to ``time``, which is then the time."""
        due = self._due
        while due and due[0][0] <= time:
            self.now, _, call = heapq.heappop(due)
            call()
        self.now = max(self.now, time)

    def run_out(self) -> None:
        """Make calls until nothing is due any more."""
        while self._due:
            self.run_until(self._due[0][0])
