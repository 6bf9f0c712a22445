"""When a request may be given to a second replica although the first one answered. Pure."""

from __future__ import annotations

from http import HTTPStatus

__all__ = ["RetryBudget", "may_be_asked_elsewhere"]

SHARE = 0.2
BURST = 20.0


class RetryBudget:
    """One second try in five requests, and a burst: a fleet that is full as a whole is not asked everything twice."""

    def __init__(self) -> None:
        self._left = BURST

    def earn(self) -> None:
        """A request came."""
        self._left = min(BURST, self._left + SHARE)

    def spend(self) -> bool:
        """Whether there is one left to take; if so, it is taken."""
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True


def may_be_asked_elsewhere(status: int) -> bool:
    """Whether another replica may have a better answer: this one was full, or failed."""
    return status == HTTPStatus.TOO_MANY_REQUESTS or status >= HTTPStatus.INTERNAL_SERVER_ERROR
