"""A trace in numbers: each lane's totals, and what happened when. Reads the trace once, through the real streams."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from router.trace.reader import TraceReader, Unread
from router.trace.records import Began, FrameHeard, Record, ReplicaSeen, Skipped, StreamJoined, StreamLeft
from router.trace.replayer import LaneName, ReplayedLane, Replayer
from router.trace.requests import OpenRequests, TracedRequest
from router.trace.timeline import Moment, Span, Timeline

__all__ = ["LaneTotals", "TraceSummary", "summarize"]

_TROUBLES = ("gaps", "lost", "restarts", "rejected_batches", "replay_failures")


class LaneTotals(msgspec.Struct, frozen=True, kw_only=True):
    """One lane. Block sizes are block widths in tokens; ``blocks`` are held at the trace's end.

    ``batches`` were applied, ``replayed`` of them from replays; ``bytes`` are those of all frames. ``told`` of the
    ``requests`` came back with the engine's account; tokens are those of these.
    """

    url: str
    dp_rank: int
    engine: str | None
    stream: str
    advertised_block_size: int | None
    emitted_block_sizes: Sequence[int]
    batches: int
    replayed: int
    bytes: int
    events: int
    stored: int
    removed: int
    cleared: int
    rejected: int
    gaps: int
    lost: int
    restarts: int
    blocks: int
    requests: int
    told: int
    prompt_tokens: int
    predicted: int
    reported: int


class TraceSummary(msgspec.Struct, frozen=True, kw_only=True):
    """``torn``: the file ends inside a record. ``skipped`` is what cannot be read.

    ``first`` and ``last`` are seconds since the epoch.

    Requests without a lane are those of a workload; they are counted in ``unrouted``. Spans last ``span_seconds``.
    """

    file: str
    bytes: int
    records: int
    torn: bool
    skipped: Sequence[Unread]
    recorders: Sequence[Began]
    first: float | None
    last: float | None
    lanes: Sequence[LaneTotals]
    unrouted: int
    span_seconds: float
    spans: Sequence[Span]
    moments: Sequence[Moment]
    moments_unsaid: int


class _Books:
    """What is counted of one lane beside its stream."""

    def __init__(self) -> None:
        self.bytes = self.requests = self.told = 0
        self.prompt_tokens = self.predicted = self.reported = 0

    def enter(self, request: TracedRequest) -> None:
        self.requests += 1
        if request.reported is not None:
            self.told += 1
            self.prompt_tokens += request.routed.prompt_tokens
            self.predicted += request.routed.predicted
            self.reported += request.reported


class _Summing:
    """One reading of a trace."""

    def __init__(self, reader: TraceReader) -> None:
        self._reader = reader
        self._replayer = Replayer()
        self._requests = OpenRequests()
        self._books: dict[LaneName, _Books] = {}
        self._recorders: list[Began] = []
        self._records = self._unrouted = 0
        self._timeline: Timeline | None = None
        self._last: float | None = None

    def run(self) -> TraceSummary:
        for record in self._reader:
            self._feed(record)
        for request in self._requests.rest():
            self._enter(request)
        return self._summary()

    def _feed(self, record: Record) -> None:
        self._records += 1
        for request in self._requests.feed(record):
            self._enter(request)
        timeline = self._at(record)
        if isinstance(record, FrameHeard):
            self._frame(record, timeline)
        else:
            self._replayer.feed(record)
        match record:
            case Began():
                self._recorders.append(record)
                timeline.note(record.at, f"{record.program} {record.version} begins: {record.source}")
            case ReplicaSeen():
                why = f": {record.trouble}" if record.trouble else ""
                timeline.note(record.at, f"{record.url} is {record.state}{why}")
            case StreamJoined():
                name = self._replayer.lane(record.lane).name
                timeline.note(record.at, f"{name} joined at {record.endpoint}, {record.block_size} advertised")
            case StreamLeft():
                timeline.note(record.at, f"{self._replayer.lane(record.lane).name} left")
            case Skipped():
                timeline.note(
                    self._last or 0.0, f"damage: {record.size} bytes from byte {record.offset} on are skipped"
                )

    def _at(self, record: Record) -> Timeline:
        at = getattr(record, "at", self._last) or 0.0
        self._last = at if self._last is None else max(at, self._last)
        if self._timeline is None:
            self._timeline = Timeline(start=at)
        return self._timeline

    def _frame(self, record: FrameHeard, timeline: Timeline) -> None:
        lane = self._replayer.lane(record.lane)
        before, counts = lane.totals(), lane.counts
        stored, removed, width = counts.stored, counts.removed, lane.width
        self._replayer.feed(record)
        self._of(lane.name).bytes += len(record.payload)
        timeline.add(record.at, batches=1, stored=lane.counts.stored - stored, removed=lane.counts.removed - removed)
        after = lane.totals()
        for name in _TROUBLES:
            if after[name] > before[name]:
                timeline.note(record.at, f"{lane.name} batch {record.seq}: {name.replace('_', ' ')} {after[name]}")
        if lane.width != width:
            timeline.note(
                record.at, f"{lane.name} emits blocks of {lane.width}, {lane.advertised_block_size} advertised"
            )

    def _enter(self, request: TracedRequest) -> None:
        routed = request.routed
        if routed.lane is None:
            self._unrouted += 1
        else:
            self._of(self._replayer.lane(routed.lane).name).enter(request)
        told = {} if request.reported is None else {"predicted": routed.predicted, "reported": request.reported}
        self._at(routed).add(routed.at, requests=1, **told)

    def _of(self, name: LaneName) -> _Books:
        return self._books.setdefault(name, _Books())

    def _summary(self) -> TraceSummary:
        timeline = self._timeline or Timeline(start=0.0)
        return TraceSummary(
            file=str(self._reader.path),
            bytes=self._reader.size,
            records=self._records,
            torn=self._reader.torn,
            skipped=self._reader.skipped,
            recorders=self._recorders,
            first=self._recorders[0].at if self._recorders else None,
            last=self._last,
            lanes=[self._lane(name, lane) for name, lane in self._replayer.lanes.items()],
            unrouted=self._unrouted,
            span_seconds=timeline.seconds,
            spans=timeline.spans,
            moments=timeline.moments,
            moments_unsaid=timeline.unsaid,
        )

    def _lane(self, name: LaneName, lane: ReplayedLane) -> LaneTotals:
        books, counts, stats = self._of(name), lane.counts, self._replayer.index.stats(lane.handle)
        replica, totals = self._replayer.replicas.get(name.url), lane.totals()
        return LaneTotals(
            url=name.url,
            dp_rank=name.dp_rank,
            engine=None if replica is None else replica.engine,
            stream=lane.status.state,
            advertised_block_size=lane.advertised_block_size,
            emitted_block_sizes=lane.emitted_block_sizes,
            batches=totals["batches"],
            replayed=totals["replayed"],
            bytes=books.bytes,
            events=counts.events,
            stored=counts.stored,
            removed=counts.removed,
            cleared=counts.cleared,
            rejected=stats.rejected_events + totals["rejected_batches"],
            gaps=totals["gaps"],
            lost=totals["lost"],
            restarts=totals["restarts"],
            blocks=sum(stats.blocks.values()),
            requests=books.requests,
            told=books.told,
            prompt_tokens=books.prompt_tokens,
            predicted=books.predicted,
            reported=books.reported,
        )


def summarize(reader: TraceReader) -> TraceSummary:
    """A trace in numbers.

    Raises:
        TraceFileError: it cannot be read, or is damaged.
    """
    return _Summing(reader).run()
