"""Figures as Markdown tables: one for each bench and metric, cases down, subjects across."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from bench.figures import Figure

__all__ = ["tables"]

_ABSENT = "-"


def tables(figures: Sequence[Figure]) -> Iterator[str]:
    """The tables of one bench, in the order in which their metrics appear."""
    for metric in _in_order(one.metric for one in figures):
        yield _table([one for one in figures if one.metric == metric])


def _table(figures: Sequence[Figure]) -> str:
    """All of one metric."""
    subjects = _in_order(one.subject for one in figures)
    values = {(one.case, one.subject): _number(one.value) for one in figures}
    first = figures[0]
    head = [[f"{first.metric} ({first.unit})", *subjects], ["---", *("---:" for _ in subjects)]]
    cases = _in_order(one.case for one in figures)
    rows = head + [[case, *(values.get((case, subject), _ABSENT) for subject in subjects)] for case in cases]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in rows)


def _number(value: float) -> str:
    """Four digits that say something, and whole numbers whole."""
    return f"{value:,.0f}" if value == int(value) or abs(value) >= 1000 else f"{value:.4g}"


def _in_order(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))
