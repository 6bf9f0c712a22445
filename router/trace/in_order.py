"""Recorded frames in the order of their numbers, lane by lane: replayed ones where they belong, each of them once."""

from __future__ import annotations

import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from router.trace.records import Began, FrameHeard, LaneNamed, Record, Skipped, StreamJoined, StreamTurned, Turn

__all__ = ["InOrder", "LanesInOrder"]

_For = TypeVar("_For")

_REMEMBERED = 4_096
_MOST_WAITING = 10_000


class InOrder:
    """Feed it the lane's records. A live frame waits for what is missing before it, until the replay has ended."""

    def __init__(self) -> None:
        self._can_replay = False
        self._next: int | None = None
        self._sums: OrderedDict[int, int] = OrderedDict()
        self._waiting: dict[int, FrameHeard] = {}

    def feed(self, record: Record) -> list[FrameHeard]:
        """The frames that are next in line now."""
        match record:
            case StreamJoined():
                self._can_replay = record.can_replay
                return self.rest()
            case FrameHeard():
                return self._take(record)
            case StreamTurned(turn=Turn.REPLAY_ENDED | Turn.REPLAY_FAILED):
                return self.rest()
            case Skipped():
                rest, self._next = self.rest(), None
                return rest
        return []

    def rest(self) -> list[FrameHeard]:
        """Everything that waits; what is missing before it is lost."""
        return [self._passed(self._waiting.pop(seq)) for seq in sorted(self._waiting)]

    def _take(self, frame: FrameHeard) -> list[FrameHeard]:
        if self._next is not None and frame.seq < self._next:
            if self._sums.get(frame.seq) == zlib.crc32(frame.payload):
                return []
            self._waiting.clear()  # another engine's from here on
            self._sums.clear()
        elif self._next is not None and frame.seq > self._next and self._can_replay and not frame.replayed:
            self._waiting[frame.seq] = frame
            return self.rest() if len(self._waiting) > _MOST_WAITING else []
        return [self._passed(frame), *self._following()]

    def _following(self) -> Iterator[FrameHeard]:
        while self._next in self._waiting:
            yield self._passed(self._waiting.pop(self._next))

    def _passed(self, frame: FrameHeard) -> FrameHeard:
        self._next = frame.seq + 1
        self._sums[frame.seq] = zlib.crc32(frame.payload)
        if len(self._sums) > _REMEMBERED:
            self._sums.popitem(last=False)
        return frame


class LanesInOrder(Generic[_For]):
    """Feed it a trace's records. ``wanted`` says what a lane's frames are for, if anything."""

    def __init__(self, wanted: Callable[[LaneNamed], _For | None]) -> None:
        self._wanted = wanted
        self._lanes: dict[int, tuple[_For, InOrder]] = {}

    def feed(self, record: Record) -> Iterator[tuple[_For, FrameHeard]]:
        """The frames that are next in line now, each with what it is for."""
        match record:
            case Began():
                yield from self.rest()
                self._lanes.clear()
            case LaneNamed():
                purpose = self._wanted(record)
                if purpose is not None:
                    self._lanes[record.lane] = purpose, InOrder()
            case Skipped():
                for purpose, order in self._lanes.values():
                    yield from ((purpose, frame) for frame in order.feed(record))
            case _:
                found = self._lanes.get(getattr(record, "lane", -1))
                if found is not None:
                    yield from ((found[0], frame) for frame in found[1].feed(record))

    def rest(self) -> Iterator[tuple[_For, FrameHeard]]:
        """Everything that waits, at the end."""
        for purpose, order in self._lanes.values():
            yield from ((purpose, frame) for frame in order.rest())
