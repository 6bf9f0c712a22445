"""A trace through the router's own stream tracking and index: every lane in every state that its recorder saw.

Requests are handed on by whoever reads the trace. No sockets, no clock: times are the recorder's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from contract.framing import Frame
from router.intake.index import BlockIndex, LaneHandle
from router.intake.stream import LaneStream
from router.intake.stream_report import StreamStatus
from router.trace.followed_lane import EventCounts, FollowedLane
from router.trace.records import (
    Began,
    FrameHeard,
    LaneNamed,
    Record,
    ReplicaSeen,
    Skipped,
    StreamJoined,
    StreamLeft,
    StreamTurned,
    Turn,
)
from router.trace.resumed_stream import ResumedStream

__all__ = ["LaneName", "ReplayedLane", "Replayer"]


_COUNTS = ("batches", "replayed", "gaps", "lost", "restarts", "rejected_batches", "replay_failures")


class LaneName(NamedTuple):
    """Which lane: the base URL of its replica, and its data-parallel rank."""

    url: str
    dp_rank: int

    def __str__(self) -> str:
        return f"{self.url}#{self.dp_rank}"


class ReplayedLane:
    """One lane as the trace has told of it so far.

    ``joined`` is what its stream, the latest one, began with; ``streams`` is how those before it ended.
    """

    def __init__(self, name: LaneName, index: BlockIndex) -> None:
        self.name = name
        self.joined: StreamJoined | None = None
        self.streams: list[StreamStatus] = []
        self._index = index
        self._lane = FollowedLane(index, can_replay=False, block_size=None)
        self._widths: dict[int, None] = {}

    @property
    def handle(self) -> LaneHandle:
        """The lane in the index."""
        return self._lane.handle

    @property
    def width(self) -> int | None:
        """The block width its prompts are hashed at; None until it is known."""
        return self._index.width(self.handle)

    @property
    def pairs(self) -> bool:
        """Whether its blocks hold pairs of neighbouring tokens."""
        return self._index.pairs(self.handle)

    @property
    def emitted_block_sizes(self) -> Sequence[int]:
        """All block widths that its events have had, the oldest first."""
        return list(self._widths | dict.fromkeys(self._index.stats(self.handle).widths_seen))

    @property
    def advertised_block_size(self) -> int | None:
        """The block width that was advertised when its stream was joined."""
        return None if self.joined is None else self.joined.block_size

    @property
    def status(self) -> StreamStatus:
        """How its latest stream is doing."""
        return self._lane.stream.status

    @property
    def counts(self) -> EventCounts:
        """What all its batches said."""
        return self._lane.counts

    def totals(self) -> dict[str, int]:
        """The counts of ``StreamStatus`` that grow with what happens, over all its streams."""
        statuses = [*self.streams, self.status]
        return {name: sum(getattr(status, name) for status in statuses) for name in _COUNTS}

    def join(self, record: StreamJoined) -> None:
        """Follow a stream from its beginning."""
        if self.joined is not None:
            self.streams.append(self.status)
        self._follow(record)

    def missed(self, why: str) -> None:
        """Part of what was told of its stream, if it had one, cannot be read: nothing that it held is believed."""
        if self.joined is not None:
            self.streams.append(self.status)
            self._follow(self.joined, ResumedStream(why, can_replay=self.joined.can_replay))

    def leave(self) -> None:
        """Its stream is not followed any more."""
        self._keep_widths()
        self._lane.leave()

    def heard(self, record: FrameHeard) -> None:
        """A frame came."""
        frame, stream = Frame(record.topic, record.seq, record.payload), self._lane.stream
        self._lane.perform(stream.replayed(frame) if record.replayed else stream.live(frame, now=record.at))

    def turned(self, record: StreamTurned) -> None:
        """Something else happened to its stream."""
        stream = self._lane.stream
        match record.turn:
            case Turn.CONNECTED:
                self._lane.perform(stream.connected())
            case Turn.CHECK:
                self._lane.perform(stream.check())
            case Turn.REPLAY_AGAIN:
                stream.replay_again()
            case Turn.REPLAY_ENDED:
                self._lane.perform(stream.replay_ended())
            case Turn.REPLAY_FAILED:
                self._lane.perform(stream.replay_failed(record.why))

    def _follow(self, joined: StreamJoined, stream: LaneStream | None = None) -> None:
        self._keep_widths()
        self._lane.close()
        self.joined = joined
        self._lane = FollowedLane(
            self._index,
            can_replay=joined.can_replay,
            block_size=joined.block_size,
            counts=self._lane.counts,
            stream=stream,
        )

    def _keep_widths(self) -> None:
        self._widths = dict.fromkeys(self.emitted_block_sizes)


class Replayer:
    """Feed it a trace's records in order; ``index`` then holds what the recorder's held."""

    def __init__(self) -> None:
        self.index = BlockIndex()
        self.replicas: dict[str, ReplicaSeen] = {}
        self._lanes: dict[LaneName, ReplayedLane] = {}
        self._by_number: dict[int, ReplayedLane] = {}

    @property
    def lanes(self) -> Mapping[LaneName, ReplayedLane]:
        """Every lane that was named, in that order."""
        return self._lanes

    def feed(self, record: Record) -> None:
        """Take in the next record; one of a request changes nothing."""
        match record:
            case Began():
                self._forget_numbers()
            case Skipped():
                for lane in self._lanes.values():
                    lane.missed(f"{record.size} bytes of the trace cannot be read")
            case ReplicaSeen():
                self.replicas[record.url] = record
            case LaneNamed():
                self._by_number[record.lane] = self._named(LaneName(record.url, record.dp_rank))
            case StreamJoined():
                self.lane(record.lane).join(record)
            case StreamLeft():
                self.lane(record.lane).leave()
            case FrameHeard():
                self.lane(record.lane).heard(record)
            case StreamTurned():
                self.lane(record.lane).turned(record)

    def lane(self, number: int) -> ReplayedLane:
        """The lane of that number, as of the latest recorder, which has named it (`TraceReader` sees to that)."""
        return self._by_number[number]

    def _named(self, name: LaneName) -> ReplayedLane:
        lane = self._lanes.get(name)
        if lane is None:
            lane = self._lanes[name] = ReplayedLane(name, self.index)
        return lane

    def _forget_numbers(self) -> None:
        """Another recorder begins: it follows its streams from their beginnings."""
        self._by_number.clear()
        for lane in self._lanes.values():
            lane.leave()
