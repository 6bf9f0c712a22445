"""A trace's records one after the other, at full speed or as far apart as they were recorded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable

from router.trace.records import Record

__all__ = ["paced"]

_BREATH = 64
"""Records between two turns of the loop, where none waits."""


async def paced(
    records: Iterable[Record], *, speed: float, clock: Callable[[], float] | None = None
) -> AsyncIterator[Record]:
    """``speed`` 1 keeps the recorded times, 2 halves them; 0 does not wait at all."""
    clock = clock or asyncio.get_running_loop().time
    began, first = clock(), None
    for number, record in enumerate(records):
        at = getattr(record, "at", None)
        if speed and at is not None:
            first = at if first is None else first
            await asyncio.sleep(max(began + (at - first) / speed - clock(), 0.0))
        elif number % _BREATH == 0:
            await asyncio.sleep(0)
        yield record
