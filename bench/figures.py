"""Figures as benches print them: one object a line, each the median of its runs."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import msgspec

__all__ = ["Figure", "as_json", "as_text", "figure"]


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """What ``subject`` reached in ``case``: ``value`` is the median of ``runs``. A ratio names both its subjects."""

    bench: str
    case: str
    subject: str
    metric: str
    value: float
    unit: str
    runs: int


def figure(bench: str, case: str, subject: str, metric: str, values: Sequence[float], *, unit: str) -> Figure:
    """The median of ``values``, one a run."""
    value = statistics.median(values)
    return Figure(bench=bench, case=case, subject=subject, metric=metric, value=value, unit=unit, runs=len(values))


def as_json(one: Figure) -> str:
    """One line of JSON."""
    return msgspec.json.encode(one).decode()


def as_text(one: Figure) -> str:
    """One line to be read."""
    return f"{one.case:<42} {one.subject:<22} {one.metric:<18} {one.value:>9.4g} {one.unit:<5} (of {one.runs})"
