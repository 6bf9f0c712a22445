"""The replicas of a trace as another router may meet them: what each said of itself, and how wide its blocks are."""

from __future__ import annotations

import msgspec

from router.fleet.identity import MAX_RANKS
from router.trace.chunk import TraceFileError
from router.trace.reader import TraceReader
from router.trace.replayer import ReplayedLane, Replayer

__all__ = ["RecordedReplica", "recorded_replicas"]


class RecordedReplica(msgspec.Struct, frozen=True, kw_only=True):
    """``block_size`` is the block width that was advertised, or else the one that its events had."""

    url: str
    engine: str | None
    version: str | None
    model: str
    topic: str
    dp_size: int
    block_size: int


def recorded_replicas(reader: TraceReader) -> list[RecordedReplica]:
    """All replicas of which frames were recorded. Reads the trace once.

    Raises:
        TraceFileError: it cannot be read, is damaged, has no such replica, or one whose width nobody told.
    """
    replayer = Replayer()
    for record in reader:
        replayer.feed(record)
    by_url: dict[str, list[ReplayedLane]] = {}
    for name, lane in replayer.lanes.items():
        if lane.joined is not None:
            by_url.setdefault(name.url, []).append(lane)
    if not by_url:
        raise TraceFileError(f"{reader.path} has no stream of events to serve")
    return [_replica(reader, replayer, url, lanes) for url, lanes in by_url.items()]


def _replica(reader: TraceReader, replayer: Replayer, url: str, lanes: list[ReplayedLane]) -> RecordedReplica:
    widths = [lane.advertised_block_size or lane.width for lane in lanes]
    width = next((width for width in widths if width), None)
    if width is None:
        raise TraceFileError(f"{reader.path}: nobody told the block width of {url}, so nothing can be advertised")
    dp_size = max(lane.name.dp_rank for lane in lanes) + 1
    if dp_size > MAX_RANKS:
        raise TraceFileError(f"{reader.path}: {url} has data-parallel rank {dp_size - 1}, above {MAX_RANKS - 1}")
    seen = replayer.replicas.get(url)
    joined = lanes[0].joined
    assert joined is not None, "only lanes whose stream was joined are looked at"
    return RecordedReplica(
        url=url,
        engine=None if seen is None else seen.engine,
        version=None if seen is None else seen.version,
        model=seen.models[0] if seen is not None and seen.models else "recorded",
        topic=joined.topic,
        dp_size=dp_size,
        block_size=width,
    )
