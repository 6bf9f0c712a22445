"""What happened when: counts by time, in a bounded number of equal spans, and moments worth a line. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import msgspec

__all__ = ["Moment", "Span", "Timeline"]

MAX_SPANS = 24
MAX_MOMENTS = 200


class Span(msgspec.Struct, kw_only=True):
    """What was counted from ``start`` on, in seconds since the trace began.

    Hits are in tokens, and of requests whose engine has reported them.
    """

    start: float
    batches: int = 0
    stored: int = 0
    removed: int = 0
    requests: int = 0
    predicted: int = 0
    reported: int = 0

    def __iadd__(self, other: Span) -> Self:
        for name in _COUNTS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        return self


_COUNTS = tuple(name for name in Span.__struct_fields__ if name != "start")


class Moment(msgspec.Struct, frozen=True):
    """Something that happened, ``at`` seconds since the trace began."""

    at: float
    what: str


class Timeline:
    """Spans begin at one second each and double when there would be more than ``MAX_SPANS``.

    Past ``MAX_MOMENTS`` moments are only counted, in ``unsaid``.
    """

    def __init__(self, *, start: float) -> None:
        self.seconds = 1.0
        self.moments: list[Moment] = []
        self.unsaid = 0
        self._start = start
        self._spans: list[Span] = []

    def add(self, at: float, **counts: int) -> None:
        """Count something that happened at a time since the epoch; one before the start counts as at the start."""
        offset = max(at - self._start, 0.0)
        while offset >= self.seconds * MAX_SPANS:
            self._double()
        place = int(offset / self.seconds)
        while len(self._spans) <= place:
            self._spans.append(Span(start=len(self._spans) * self.seconds))
        self._spans[place] += Span(start=0.0, **counts)

    def note(self, at: float, what: str) -> None:
        """Say what happened at a time since the epoch."""
        if len(self.moments) < MAX_MOMENTS:
            self.moments.append(Moment(round(max(at - self._start, 0.0), 3), what))
        else:
            self.unsaid += 1

    @property
    def spans(self) -> Sequence[Span]:
        """All spans up to the latest one with something in it."""
        return self._spans

    def _double(self) -> None:
        self.seconds *= 2
        for earlier, later in zip(self._spans[::2], self._spans[1::2], strict=False):
            earlier += later
        self._spans = self._spans[::2]
