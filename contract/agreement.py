"""One value out of many engines: what all present engines agree on, or none and why.

A server in front of several engines may advertise a block width only while every one of them reports the same.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

__all__ = ["Agreement", "agree"]


class Agreement(msgspec.Struct, frozen=True):
    """``value`` is set only while all agree; otherwise ``reason`` says who reports what."""

    value: int | None
    reason: str | None = None


def agree(reports: Mapping[int, int | None]) -> Agreement:
    """Agreement of the engines present, by rank; ``None`` is an engine that reported nothing."""
    if not reports:
        return Agreement(None, "no engine is present")
    silent = sorted(rank for rank, value in reports.items() if value is None)
    if silent:
        return Agreement(None, f"no value from rank {', '.join(map(str, silent))}")
    values = set(reports.values())
    if len(values) > 1:
        listing = ", ".join(f"rank {rank}: {value}" for rank, value in sorted(reports.items()))
        return Agreement(None, f"engines disagree ({listing})")
    return Agreement(values.pop())
