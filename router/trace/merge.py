"""One trace of what the workers of one router recorded: every worker's requests, and events once.

Each worker hears all events, and all hear the same; those of the first trace are taken. So what a lane holds is as that
worker saw it, also for requests that another one routed a moment before or after.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from importlib.metadata import version

import msgspec

from router.trace.reader import TraceReader
from router.trace.recorder import PROGRAM
from router.trace.records import (
    Began,
    FirstToken,
    FrameHeard,
    LaneNamed,
    Record,
    ReplicaSeen,
    Routed,
    Served,
    Skipped,
    StreamJoined,
    StreamLeft,
    StreamTurned,
)
from router.trace.replayer import LaneName

__all__ = ["merged"]


def merged(readers: Sequence[TraceReader]) -> Iterator[Record]:
    """The records of all traces by time, those of streams and replicas from the first one.

    Raises:
        TraceFileError: a trace cannot be read.
    """
    lanes: dict[LaneName, int] = {}
    parts = [_Part(place, of=len(readers), lanes=lanes) for place in range(len(readers))]
    timed = [_timed(reader, part) for reader, part in zip(readers, parts, strict=True)]
    began = False
    for at, part, record in heapq.merge(*timed, key=lambda one: one[0]):
        if not began:
            yield Began(at=at, program=PROGRAM, version=version("kvsteer"), source=f"{len(readers)} traces merged")
            began = True
        yield from part.told(record)


def _timed(reader: TraceReader, part: _Part) -> Iterator[tuple[float, _Part, Record]]:
    """Records with times that never go back; what has none happens when the one before it did."""
    latest = 0.0
    for record in reader:
        latest = max(getattr(record, "at", latest), latest)
        yield latest, part, record


class _Part:
    """One of the traces, told in the numbers of the whole: lanes by name, requests by trace, recorder and number."""

    def __init__(self, place: int, *, of: int, lanes: dict[LaneName, int]) -> None:
        self._place, self._of = place, of
        self._lanes = lanes
        self._numbers: dict[int, int] = {}
        self._joined: set[int] = set()
        self._first = self._next = 0

    def told(self, record: Record) -> Iterator[Record]:
        """What a record becomes."""
        match record:
            case Began():
                self._numbers.clear()
                self._first = self._next
                yield from (StreamLeft(at=record.at, lane=lane) for lane in sorted(self._joined))
                self._joined.clear()
            case LaneNamed():
                yield from self._named(record)
            case Routed():
                lane = None if record.lane is None else self._numbers[record.lane]
                others = [self._numbers[number] for number in record.lanes]
                yield msgspec.structs.replace(record, request=self._request(record.request), lane=lane, lanes=others)
            case FirstToken() | Served():
                yield msgspec.structs.replace(record, request=self._request(record.request))
            case ReplicaSeen() | Skipped():
                yield from () if self._place else (record,)
            case StreamJoined() | StreamLeft() | FrameHeard() | StreamTurned():
                yield from () if self._place else (self._of_stream(record),)

    def _named(self, lane: LaneNamed) -> Iterator[Record]:
        name = LaneName(lane.url, lane.dp_rank)
        known = name in self._lanes
        number = self._numbers[lane.lane] = self._lanes.setdefault(name, len(self._lanes))
        if not known:
            yield msgspec.structs.replace(lane, lane=number)

    def _of_stream(self, record: StreamJoined | StreamLeft | FrameHeard | StreamTurned) -> Record:
        lane = self._numbers[record.lane]
        if isinstance(record, StreamJoined):
            self._joined.add(lane)
        elif isinstance(record, StreamLeft):
            self._joined.discard(lane)
        return msgspec.structs.replace(record, lane=lane)

    def _request(self, number: int) -> int:
        """Requests of one recorder count from 0; those of the next one of the same trace come behind them."""
        self._next = max(self._next, self._first + number + 1)
        return (self._first + number) * self._of + self._place
