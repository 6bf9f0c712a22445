"""A replica's breaker: when too many requests in a row fail on it, others get them for a while. Pure.

Health asks whether an engine is there; this asks whether it answers. What counts as a failure is a lost connection, a
silence past its limit, or a status of 500 and above other than 503: an engine that says it is full, or that a request
makes no sense, is well. Open, it lets one request through each ``pause`` seconds; one good answer closes it.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from http import HTTPStatus

__all__ = ["FAILURES_TO_OPEN", "Breaker", "BreakerState", "counts_as_failure"]

FAILURES_TO_OPEN = 5


class BreakerState(enum.StrEnum):
    """Values are the names shown in ``/replicas``. Half-open: the next request is a trial."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"


class Breaker:
    """Times are handed in, in seconds."""

    def __init__(self, *, pause: float) -> None:
        self._pause = pause
        self._failures = 0
        self._next_trial = 0.0
        self._when_open: Callable[[], object] | None = None

    def when_open(self, call: Callable[[], object] | None) -> None:
        """Call this, or nothing, whenever it opens."""
        self._when_open = call

    @property
    def closed(self) -> bool:
        """Whether everything may be sent."""
        return self._failures < FAILURES_TO_OPEN

    def state(self, *, now: float) -> BreakerState:
        """As it stands."""
        if self.closed:
            return BreakerState.CLOSED
        return BreakerState.HALF_OPEN if now >= self._next_trial else BreakerState.OPEN

    def admits(self, *, now: float) -> bool:
        """Whether a request may be sent."""
        return self.closed or now >= self._next_trial

    def sent(self, *, now: float) -> None:
        """A request was sent. If it was a trial, nobody else tries until it had its time, whatever becomes of it."""
        if not self.closed:
            self._next_trial = now + self._pause

    def succeeded(self) -> None:
        """The engine answered, or it is another one now."""
        self._failures = 0

    def failed(self, *, now: float) -> None:
        """The engine did not answer as one that works."""
        self._failures += 1
        self._next_trial = now + self._pause
        if self._failures == FAILURES_TO_OPEN and self._when_open is not None:
            self._when_open()


def counts_as_failure(status: int) -> bool:
    """Whether an answer's status says that the engine is broken rather than full or right."""
    return status >= HTTPStatus.INTERNAL_SERVER_ERROR and status != HTTPStatus.SERVICE_UNAVAILABLE
