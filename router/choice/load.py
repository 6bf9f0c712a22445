"""What has been sent to a lane and not ended: prompt tokens waiting for prefill, answers being decoded.

A booking changes a lane's numbers and, when it is ended, takes them back to where they were. Pure; no clock.
"""

from __future__ import annotations

import math

__all__ = ["Booking", "BusyShare", "LaneLoad"]

BUSY_SECONDS = 60.0
MIN_BUSY_WINDOW = 5.0


class LaneLoad:
    """One lane's books. ``queued_tokens`` are uncached prompt tokens without a first token yet."""

    def __init__(self) -> None:
        self.queued_tokens = 0
        self.prefilling = 0
        self.decoding = 0

    @property
    def in_flight(self) -> int:
        """Requests sent and not ended."""
        return self.prefilling + self.decoding

    def book(self, tokens: int) -> Booking:
        """Count a request of ``tokens`` uncached prompt tokens until the booking is ended."""
        return Booking(self, tokens)


class Booking:
    """One request's entry in its lane's books. ``tokens_ahead``: queued by others when it was sent."""

    def __init__(self, load: LaneLoad, tokens: int) -> None:
        self.tokens = tokens
        self.tokens_ahead = load.queued_tokens
        self._load = load
        self._prefilling = True
        load.queued_tokens += tokens
        load.prefilling += 1

    def prefilled(self) -> None:
        """The first token is there: no prompt tokens wait any more, a decode runs. Further calls do nothing."""
        if self._prefilling:
            self._leave_prefill()
            self._load.decoding += 1

    def end(self) -> None:
        """Take the request off the books; called once, whatever ended it."""
        if self._prefilling:
            self._leave_prefill()
        else:
            self._load.decoding -= 1

    def _leave_prefill(self) -> None:
        self._prefilling = False
        self._load.queued_tokens -= self.tokens
        self._load.prefilling -= 1


class BusyShare:
    """Share of the fleet's prefill time that is taken, averaged over about a minute. Times are handed in."""

    def __init__(self, *, now: float) -> None:
        self._since = self._at = now
        self._work = 0.0

    def add(self, seconds: float, *, now: float) -> None:
        """Somebody was given that much prefill work."""
        self._work = self._faded(now) + seconds
        self._at = now

    def share(self, *, lanes: int, now: float) -> float:
        """Work given per second and lane; may pass 1 when more is given than can be done."""
        window = BUSY_SECONDS * -math.expm1(-max(now - self._since, MIN_BUSY_WINDOW) / BUSY_SECONDS)
        return self._faded(now) / window / max(lanes, 1)

    def _faded(self, now: float) -> float:
        return self._work * math.exp(-(now - self._at) / BUSY_SECONDS)
