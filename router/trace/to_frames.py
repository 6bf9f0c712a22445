"""A trace's frames as JSON lines, in the order in which its lanes took them: replayed ones where they belong."""

from __future__ import annotations

import zlib
from collections import OrderedDict
from collections.abc import Iterable, Iterator

from contract.framing import Frame
from router.trace.chunk import TraceFileError
from router.trace.frame_lines import frame_line
from router.trace.records import FrameHeard, LaneNamed, Record, StreamJoined, StreamTurned, Turn

__all__ = ["frame_lines"]

_REMEMBERED = 4096
_MOST_WAITING = 10_000


class _InOrder:
    """One lane's frames by number: what is missing before a live one may come in a replay, and until that has ended."""

    def __init__(self) -> None:
        self._can_replay = False
        self._next: int | None = None
        self._sums: OrderedDict[int, int] = OrderedDict()
        self._waiting: dict[int, Frame] = {}

    def join(self, *, can_replay: bool) -> list[Frame]:
        """A stream begins; what waited before does so in vain."""
        self._can_replay = can_replay
        return self.rest()

    def take(self, frame: Frame, *, replayed: bool) -> list[Frame]:
        """The frames that are next in line now."""
        if self._next is not None and frame.seq < self._next:
            if self._sums.get(frame.seq) == zlib.crc32(frame.payload):
                return []
            self._waiting.clear()  # another engine's from here on
            self._sums.clear()
        elif self._next is not None and frame.seq > self._next and self._can_replay and not replayed:
            self._waiting[frame.seq] = frame
            return self.rest() if len(self._waiting) > _MOST_WAITING else []
        return [self._write(frame), *self._following()]

    def rest(self) -> list[Frame]:
        """Everything that waits; what is missing before it is lost."""
        return [self._write(self._waiting.pop(seq)) for seq in sorted(self._waiting)]

    def _following(self) -> Iterator[Frame]:
        while self._next in self._waiting:
            yield self._write(self._waiting.pop(self._next))

    def _write(self, frame: Frame) -> Frame:
        self._next = frame.seq + 1
        self._sums[frame.seq] = zlib.crc32(frame.payload)
        if len(self._sums) > _REMEMBERED:
            self._sums.popitem(last=False)
        return frame


def frame_lines(records: Iterable[Record], *, replica: str | None) -> Iterator[bytes]:
    """The lines of one replica's lanes, which are told apart by the rank inside their batches.

    Raises:
        TraceFileError: there are several replicas and none is named, or the one named is not there.
    """
    urls: dict[str, None] = {}
    lanes: dict[int, _InOrder] = {}
    for record in records:
        if isinstance(record, LaneNamed):
            urls[record.url] = None
            if replica is None and len(urls) > 1:
                raise TraceFileError(f"several replicas were recorded, name one by --replica: {', '.join(urls)} ...")
            if replica in (None, record.url):
                lanes[record.lane] = _InOrder()
            else:
                lanes.pop(record.lane, None)
        else:
            yield from map(frame_line, _taken(record, lanes))
    for lane in lanes.values():
        yield from map(frame_line, lane.rest())
    if replica is not None and replica not in urls:
        raise TraceFileError(f"replica {replica} was not recorded; those that were: {', '.join(urls) or 'none'}")


def _taken(record: Record, lanes: dict[int, _InOrder]) -> list[Frame]:
    match record:
        case StreamJoined(lane=number, can_replay=can_replay) if number in lanes:
            return lanes[number].join(can_replay=can_replay)
        case FrameHeard(lane=number) if number in lanes:
            return lanes[number].take(Frame(record.topic, record.seq, record.payload), replayed=record.replayed)
        case StreamTurned(lane=number, turn=Turn.REPLAY_ENDED | Turn.REPLAY_FAILED) if number in lanes:
            return lanes[number].rest()
    return []
