"""A trace of real engines behind a real router, kept: it must be readable for ever, and lead to the same predictions.

``recorded/mixed-widths.kvtrace``: three simulated engines of this project, two with page 16 and dcp 4 (blocks of 64),
one without dcp (blocks of 16); three waves of four chats, four turns each, over a common beginning; recorded by
``serve --trace-out``, the router killed in the end.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from router.trace.played_trace import PlayedTrace
from router.trace.reader import TraceReader
from router.trace.recorded_prompt import RecordedPrompt
from router.trace.records import FrameHeard, Record, Routed
from router.trace.what_if import what_if
from router.trace.writer import TraceWriter

RECORDED = Path(__file__).parent / "recorded" / "mixed-widths.kvtrace"
KvTrace = Callable[..., PlayedTrace]


def predictions(trace: PlayedTrace) -> tuple[list[int], list[int]]:
    """Of each request, in order: what the index holds of it on its lane when it is routed, and what was recorded."""
    found, recorded = [], []
    by_number: dict[int, Any] = {}
    for record in trace.steps():
        by_number |= {record.lane: record.url} if type(record).__name__ == "LaneNamed" else {}
        if isinstance(record, Routed):
            assert record.lane is not None
            lane = trace.lane(by_number[record.lane])
            match = trace.index.match(RecordedPrompt(record), [lane.handle])[lane.handle]
            found.append(match.tokens)
            recorded.append(record.predicted)
    return found, recorded


def without_a_batch(path: Path) -> Path:
    """The same trace, but one batch in the middle never came: nobody noticed, and nobody asked for it again."""
    frames = [record for record in TraceReader(RECORDED) if isinstance(record, FrameHeard) and not record.replayed]
    missing: Record = frames[len(frames) // 2]
    with TraceWriter(path) as writer:
        for record in TraceReader(RECORDED):
            if record != missing:
                writer.write(record)
    return path


def test_it_plays_without_a_fault_and_its_engines_found_what_was_predicted(kvtrace: KvTrace) -> None:
    trace = kvtrace("recorded/mixed-widths.kvtrace")
    trace.check()
    assert sorted(lane.width or 0 for lane in trace.lanes) == [16, 64, 64]
    assert len(trace.requests) == 48
    reports = [(request.routed.predicted, request.reported or 0) for request in trace.requests]
    assert all(predicted <= reported for predicted, reported in reports)
    assert sum(predicted != reported for predicted, reported in reports) == 1, "one overtook another's events"
    assert (sum(one for one, _ in reports), sum(other for _, other in reports)) == (15_856, 15_984)


def test_every_prediction_comes_out_again(kvtrace: KvTrace) -> None:
    found, recorded = predictions(kvtrace("recorded/mixed-widths.kvtrace", whole=False))
    assert found == recorded
    assert sum(recorded) == 15_856


def test_a_batch_that_is_missing_does_not_pass(kvtrace: KvTrace, tmp_path: Path) -> None:
    """The trace that must fail: what its lanes hold is no longer what the recorded router knew."""
    path = without_a_batch(tmp_path / "missing.kvtrace")
    found, recorded = predictions(kvtrace(path, whole=False))
    assert found != recorded
    assert sum(found) < sum(recorded)
    lanes = {lane.name: lane.status.state for lane in kvtrace(path).lanes}
    assert sorted(lanes.values()) == ["live", "live", "replaying"], "a hole is asked for, and the answer never comes"


def test_one_width_for_a_fleet_of_two_loses_the_other_s_hits() -> None:
    recorded, whole, *fixed = what_if(TraceReader(RECORDED), policies=["overlap"], block_sizes=[16, 64, 32]).outcomes
    assert (recorded.seen, recorded.held, recorded.requests) == (15_856, 15_856, 48)
    assert whole.seen == whole.held
    seen = {one.block_size: one.seen for one in fixed}
    assert seen[32] == 0, "nobody's blocks are that wide"
    assert all(0 < seen[width] < whole.seen for width in (16, 64)), "each sees its own kind of lane, and no other"
    assert all(one.held >= one.seen for one in fixed)
