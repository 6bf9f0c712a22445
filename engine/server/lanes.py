"""The lanes of one replica as the server sees them, and which one a request goes to."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from aiohttp import web

from contract.agreement import Agreement
from contract.api_error import ApiError
from engine.loop import EngineLoop
from engine.ready import advertised_width

__all__ = ["Lane", "LaneEvents", "Lanes", "parse_rank", "pinned_rank"]

_RANK_HEADER = "X-Data-Parallel-Rank"


class LaneEvents(Protocol):
    """What the server asks of a lane's publisher. Any thread may ask."""

    @property
    def last_seq(self) -> int:
        """Number of the last batch, -1 before the first."""
        ...

    @property
    def alive(self) -> bool:
        """Whether events leave at all."""
        ...

    def counters(self) -> Mapping[str, int]:
        """Running totals by name."""
        ...


class Lane:
    """One data-parallel rank: its engine loop, its events (None: off), and the requests that this server has in it.

    ``ready`` is the message its engine sent when it was ready, None where it sent none.
    """

    def __init__(
        self, loop: EngineLoop, *, dp_rank: int, events: LaneEvents | None, ready: bytes | None = None
    ) -> None:
        self.loop = loop
        self.dp_rank = dp_rank
        self.events = events
        self.ready = ready
        self.in_flight = 0


class Lanes:
    """All lanes of a replica."""

    def __init__(self, lanes: Sequence[Lane]) -> None:
        self._lanes = lanes
        self._turn = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def __iter__(self) -> Iterator[Lane]:
        return iter(self._lanes)

    def __len__(self) -> int:
        return len(self._lanes)

    def __getitem__(self, dp_rank: int) -> Lane:
        return self._lanes[dp_rank]

    def choose(self, pinned: int | None) -> Lane:
        """The pinned lane, or the one with the fewest requests; lanes with equally few take turns."""
        if pinned is not None:
            return self._lanes[pinned]
        count = len(self._lanes)
        ranks = [(self._turn + step) % count for step in range(count)]
        rank = min(ranks, key=lambda rank: self._lanes[rank].in_flight)
        self._turn = (rank + 1) % count
        return self._lanes[rank]

    def enter(self, lane: Lane) -> None:
        """Count a request that was submitted to ``lane``."""
        lane.in_flight += 1
        self._idle.clear()

    def leave(self, lane: Lane) -> None:
        """Count it out again."""
        lane.in_flight -= 1
        if not any(each.in_flight for each in self._lanes):
            self._idle.set()

    def advertised_width(self) -> Agreement:
        """The block width that all engines at work report; one that has stopped no longer counts."""
        return advertised_width({lane.dp_rank: lane.ready for lane in self._lanes if lane.loop.failed is None})

    async def wait_idle(self) -> None:
        """Return once no request is in any lane."""
        await self._idle.wait()


def pinned_rank(request: web.Request, *, in_body: int | None, dp_size: int) -> int | None:
    """The data-parallel rank a request asks for; the header wins over the body.

    Raises:
        ApiError: 400 where it is no number or there is no such rank.
    """
    header = request.headers.get(_RANK_HEADER)
    if header is None:
        return None if in_body is None else parse_rank(str(in_body), dp_size=dp_size, param="data_parallel_rank")
    return parse_rank(header, dp_size=dp_size, param=_RANK_HEADER)


def parse_rank(text: str, *, dp_size: int, param: str) -> int:
    """A data-parallel rank as a client wrote it.

    Raises:
        ApiError: 400 where it is no number or there is no such rank.
    """
    if not (text.isascii() and text.isdigit() and len(text) <= 9 and int(text) < dp_size):
        raise ApiError(f"{param} {text!r:.40} is not a data-parallel rank in [0, {dp_size})", param=param)
    return int(text)
