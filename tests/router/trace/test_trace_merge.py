"""``trace merge``: the requests of all workers of a router, in time, among the events that one of them heard."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from made_trace import MadeTrace, store

from contract.events import AllBlocksCleared
from router.trace.flags import run_trace
from router.trace.played_trace import PlayedTrace
from router.trace.reader import TraceReader
from router.trace.records import Began, FrameHeard, Routed, StreamLeft

A, B = "http://10.0.0.1:30000", "http://10.0.0.2:30000"
PROMPTS = [[number] * 31 for number in range(4)]


def worker(*urls: str, sent: list[int]) -> MadeTrace:
    """What a worker records that hears of every prompt at once and routes some of them to its first lane."""
    made = MadeTrace(*urls)
    for number, url in enumerate(urls):
        made.frame(number, AllBlocksCleared())
        if url == A:
            for prompt in PROMPTS:
                made.frame(number, store(prompt))
    for place in sent:
        made.request(urls.index(A), PROMPTS[place], predicted=30, reported=30)
    return made


def merge(target: Path, *parts: Path) -> Path:
    assert run_trace(["merge", *map(str, parts), str(target)]) == 0
    return target


def test_requests_of_all_are_there_and_events_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Lanes are the same by name, though each worker numbers them as it meets them; requests keep their own times."""
    parts = [
        worker(A, B, sent=[0, 1]).write(tmp_path / "a.kvtrace"),
        worker(B, A, sent=[2, 3, 0]).write(tmp_path / "b.kvtrace"),
    ]
    whole = merge(tmp_path / "all.kvtrace", *parts)
    records = list(TraceReader(whole))
    assert sum(isinstance(record, FrameHeard) for record in records) == 2 + len(PROMPTS)
    times = [record.at for record in records if not isinstance(record, Began) and hasattr(record, "at")]
    assert times == sorted(times)
    trace = PlayedTrace(whole).run()
    assert [str(lane.name) for lane in trace.lanes] == [f"{A}#0", f"{B}#0"]
    assert len(trace.requests) == 5
    assert all(request.reported == 30 for request in trace.requests)
    assert len({request.routed.request for request in trace.requests}) == 5
    assert run_trace(["what-if", str(whole), "--policy", "overlap", "--json"]) == 0
    recorded, overlap = json.loads(capsys.readouterr().out)["outcomes"]
    assert (recorded["requests"], recorded["held"], overlap["held"]) == (5, 150, 150)


def test_a_recorder_that_went_on_in_the_first_trace_begins_its_streams_anew(tmp_path: Path) -> None:
    first, later = worker(A, sent=[0]), worker(A, sent=[1, 1])
    first.write(tmp_path / "a.kvtrace")
    later.records = [
        msgspec.structs.replace(record, at=record.at + 500) if hasattr(record, "at") else record
        for record in later.records
    ]
    later.write(tmp_path / "a.kvtrace")
    other = worker(A, sent=[2]).write(tmp_path / "b.kvtrace")
    records = list(TraceReader(merge(tmp_path / "all.kvtrace", tmp_path / "a.kvtrace", other)))
    assert sum(isinstance(record, Began) for record in records) == 1
    assert [record.lane for record in records if isinstance(record, StreamLeft)] == [0]
    numbers = [record.request for record in records if isinstance(record, Routed)]
    assert len(numbers) == len({*numbers}) == 4
    trace = PlayedTrace(tmp_path / "all.kvtrace").run()
    assert len(trace.requests) == 4
    assert all(request.served is not None for request in trace.requests)
    assert trace.lane(A).status.state == "live"


def test_a_part_that_cannot_be_read_is_named_and_nothing_is_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, target = worker(A, sent=[0]).write(tmp_path / "a.kvtrace"), tmp_path / "all.kvtrace"
    assert run_trace(["merge", str(good), str(tmp_path / "none.kvtrace"), str(target)]) == 1
    assert (
        capsys.readouterr().err == f"kvsteer-router trace merge: {tmp_path}/none.kvtrace: No such file or directory\n"
    )
    assert list(tmp_path.iterdir()) == [good]
