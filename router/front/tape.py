"""What records routed requests, as the front sees it. Who does, and where to, is not known here."""

from __future__ import annotations

from typing import Protocol

from router.choice.chooser import Decision
from router.fleet.lane import Lane
from router.front.plan import Plan
from router.proof.report import Report

__all__ = ["RequestTape"]


class RequestTape(Protocol):
    """Told of every attempt at every request. It raises nothing, whatever becomes of the recording."""

    def routed(self, plan: Plan, decision: Decision[Lane]) -> int:
        """A lane was chosen; the number by which ``served`` will mean this attempt."""
        ...

    def first_token(self, attempt: int) -> None:
        """Its answer has begun, or is there at once."""
        ...

    def served(self, attempt: int, *, first_after: float | None, report: Report | None) -> None:
        """The attempt is over; seconds to its first token, and the engine's account, as far as there were any."""
        ...
