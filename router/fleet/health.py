"""Life of a replica as a state machine over probe results. Pure.

``starting`` until a probe succeeds for the first time; then ``healthy``; ``unhealthy`` after several failures in a row,
while something still listens there; ``gone`` when nothing does. One failed probe of a busy engine changes nothing, and
one success is enough to come back.
"""

from __future__ import annotations

import enum

__all__ = ["Failure", "Health", "State"]

FAILURES_TO_UNHEALTHY = 3
REFUSALS_TO_GONE = 2


class State(enum.StrEnum):
    """Values are the names shown in ``/replicas``."""

    STARTING = "starting"
    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"
    GONE = "gone"


class Failure(enum.Enum):
    """How a replica failed: nobody listens (or the connection broke), or it answered late, wrongly or with an error."""

    UNREACHABLE = enum.auto()
    ILL = enum.auto()


class Health:
    """State, and the failures in a row that led to it. ``broken`` is set once a connection failed since the last
    success: the process behind the address may be another one when it answers again."""

    def __init__(self) -> None:
        self.state = State.STARTING
        self.probed = False
        self.broken = False
        self._failures = 0
        self._refusals = 0

    def succeeded(self) -> None:
        """A probe was answered well."""
        self.state, self.probed, self.broken = State.HEALTHY, True, False
        self._failures = self._refusals = 0

    def failed(self, failure: Failure) -> None:
        """A probe failed, or a request could not be handed over."""
        self.probed = True
        self._failures += 1
        if failure is Failure.UNREACHABLE:
            self.broken = True
            self._refusals += 1
        else:
            self._refusals = 0
        if self.state is State.STARTING:
            return
        if self._refusals >= REFUSALS_TO_GONE:
            self.state = State.GONE
        elif self._failures >= FAILURES_TO_UNHEALTHY and self.state is not State.GONE:
            self.state = State.UNHEALTHY
