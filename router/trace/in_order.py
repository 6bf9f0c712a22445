"""One lane's recorded frames in the order of their numbers: replayed ones where they belong, each of them once."""

from __future__ import annotations

import zlib
from collections import OrderedDict
from collections.abc import Iterator

from router.trace.records import FrameHeard, Record, Skipped, StreamJoined, StreamTurned, Turn

__all__ = ["InOrder"]

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
