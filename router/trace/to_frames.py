"""A trace's frames as JSON lines, in the order in which its lanes took them: replayed ones where they belong."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

from contract.framing import Frame
from router.trace.chunk import TraceFileError
from router.trace.frame_lines import frame_line
from router.trace.in_order import LanesInOrder
from router.trace.records import FrameHeard, LaneNamed, Record

__all__ = ["frame_lines"]


def frame_lines(records: Iterable[Record], *, replica: str | None) -> Iterator[bytes]:
    """The lines of one replica's lanes, which are told apart by the rank inside their batches.

    Raises:
        TraceFileError: there are several replicas and none is named, or the one named is not there.
    """
    urls: dict[str, None] = {}

    def wanted(lane: LaneNamed) -> Literal[True] | None:
        urls[lane.url] = None
        if replica is None and len(urls) > 1:
            raise TraceFileError(f"several replicas were recorded, name one by --replica: {', '.join(urls)} ...")
        return True if replica in (None, lane.url) else None

    lanes = LanesInOrder(wanted)
    for record in records:
        yield from _lines(lanes.feed(record))
    yield from _lines(lanes.rest())
    if replica is not None and replica not in urls:
        raise TraceFileError(f"replica {replica} was not recorded; those that were: {', '.join(urls) or 'none'}")


def _lines(heard: Iterable[tuple[object, FrameHeard]]) -> Iterator[bytes]:
    return (frame_line(Frame(one.topic, one.seq, one.payload)) for _, one in heard)
