"""A trace's frames as JSON lines, in the order in which its lanes took them: replayed ones where they belong."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from contract.framing import Frame
from router.trace.chunk import TraceFileError
from router.trace.frame_lines import frame_line
from router.trace.in_order import InOrder
from router.trace.records import FrameHeard, LaneNamed, Record, Skipped

__all__ = ["frame_lines"]


def frame_lines(records: Iterable[Record], *, replica: str | None) -> Iterator[bytes]:
    """The lines of one replica's lanes, which are told apart by the rank inside their batches.

    Raises:
        TraceFileError: there are several replicas and none is named, or the one named is not there.
    """
    urls: dict[str, None] = {}
    lanes: dict[int, InOrder] = {}
    for record in records:
        if isinstance(record, LaneNamed):
            urls[record.url] = None
            if replica is None and len(urls) > 1:
                raise TraceFileError(f"several replicas were recorded, name one by --replica: {', '.join(urls)} ...")
            if replica in (None, record.url):
                lanes[record.lane] = InOrder()
            else:
                lanes.pop(record.lane, None)
        elif isinstance(record, Skipped):
            for lane in lanes.values():
                yield from _lines(lane.feed(record))
        else:
            known = lanes.get(getattr(record, "lane", -1))
            yield from () if known is None else _lines(known.feed(record))
    for lane in lanes.values():
        yield from _lines(lane.rest())
    if replica is not None and replica not in urls:
        raise TraceFileError(f"replica {replica} was not recorded; those that were: {', '.join(urls) or 'none'}")


def _lines(heard: Iterable[FrameHeard]) -> Iterator[bytes]:
    return (frame_line(Frame(one.topic, one.seq, one.payload)) for one in heard)
