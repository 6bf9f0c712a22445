"""``trace show``: lanes in totals, what happened when, and what is wrong, said where it happened."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
from made_trace import MadeTrace, store

from contract.events import AllBlocksCleared, BlockRemoved
from router.trace.flags import run_trace
from router.trace.records import StreamLeft
from router.trace.timeline import MAX_SPANS, Timeline
from router.trace.writer import TraceWriter

A, B = "http://10.0.0.1:30000", "http://10.0.0.2:30000"
PROMPT = list(range(100, 131))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Two lanes; one loses a batch and is restarted, the other advertises its physical page."""
    made = MadeTrace(A, B, advertised=6)
    made.frame(0, AllBlocksCleared(), store(PROMPT))
    made.frame(0, BlockRemoved(block_hashes=store(PROMPT).block_hashes[-1:]), seq=2)
    made.frame(1, store(PROMPT, width=12))
    made.request(0, PROMPT, predicted=24, reported=24)
    made.request(1, PROMPT, predicted=0, reported=None)
    made.frame(0, store(PROMPT[:12]), seq=0)
    made.add(StreamLeft(at=made.at, lane=1))
    return made.write(tmp_path / "a.kvtrace")


def show(file: Path, capsys: pytest.CaptureFixture[str], *flags: str) -> str:
    assert run_trace(["show", str(file), *flags]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    return said.out


def test_totals_of_each_lane(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    summary: dict[str, Any] = json.loads(show(file, capsys, "--json"))
    one, two = summary["lanes"]
    wanted = {
        "url": A,
        "stream": "live",
        "batches": 3,
        "stored": 5 + 2,
        "removed": 1,
        "cleared": 1,
        "gaps": 1,
        "lost": 1,
        "restarts": 1,
        "blocks": 2,
        "requests": 1,
        "told": 1,
        "prompt_tokens": 31,
        "predicted": 24,
        "reported": 24,
    }
    assert {name: one[name] for name in wanted} == wanted
    assert (two["advertised_block_size"], two["stored"], two["blocks"]) == (6, 2, 0)
    assert (two["requests"], two["told"], two["predicted"]) == (1, 0, 0)
    assert (summary["records"], summary["torn"]) == (18, False)


def test_what_went_wrong_is_said_with_its_time(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = show(file, capsys)
    assert f" 8.000 s  {A}#0 batch 2: lost 1\n" in out
    assert f" 9.000 s  {B}#0 emits blocks of 12, 6 advertised\n" in out
    assert f"16.000 s  {A}#0 batch 0: restarts 1\n" in out
    assert "6 said, 12 sent" in out


def test_a_trace_that_ends_inside_a_record_says_so(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_bytes(file.read_bytes()[:-3])
    assert "17 records" in show(file, capsys)
    assert json.loads(show(file, capsys, "--json"))["torn"]


def test_what_cannot_be_read_is_named_in_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing = tmp_path / "missing.kvtrace"
    assert run_trace(["show", str(missing)]) == 1
    assert capsys.readouterr().err == f"kvsteer-router trace show: {missing}: No such file or directory\n"


def test_a_timeline_is_bounded_and_loses_no_count() -> None:
    timeline, chance = Timeline(start=50.0), Random(2)
    times = [50.0 + chance.random() * 10_000 for _ in range(500)]
    for at in times:
        timeline.add(at, batches=1, stored=2)
    assert len(timeline.spans) <= MAX_SPANS
    assert sum(span.batches for span in timeline.spans) == 500
    for span in timeline.spans:
        there = [at for at in times if span.start <= at - 50.0 < span.start + timeline.seconds]
        assert (span.batches, span.stored) == (len(there), 2 * len(there))


def test_behind_damage_lanes_are_untrusted_until_they_are_told_of_anew(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is read of the rest counts, what was held is not believed, and the exit status tells."""
    made = MadeTrace(A, B)
    ends, path = [], tmp_path / "a.kvtrace"
    for seq in range(120):
        for lane in (0, 1):
            made.frame(lane, store([seq] * 60), seq=seq)
    made.frame(0, AllBlocksCleared())
    made.frame(0, store(PROMPT))
    with TraceWriter(path) as writer:
        for record in made.records:
            writer.write(record)
            ends.append(writer.end)
    whole = path.read_bytes()
    place = ends[len(ends) // 3]
    path.write_bytes(whole[:place] + bytes(9) + whole[place + 9 :])
    assert run_trace(["show", str(path), "--json"]) == 1
    said = capsys.readouterr()
    summary = json.loads(said.out)
    (skipped,) = summary["skipped"]
    assert said.err.startswith(f"kvsteer-router trace show: {path} is damaged: {skipped['size']} bytes from byte ")
    assert said.err.count("\n") == 1
    one, two = summary["lanes"]
    assert (one["stream"], one["blocks"]) == ("live", 5)
    assert two["stream"] == "untrusted"
    assert 0 < two["blocks"] < 1_200
    assert 60 < two["batches"] < 120
    for command in ("replay", "what-if"):
        assert run_trace([command, str(path), "--json"]) == 1
        said = capsys.readouterr()
        assert f"{path} is damaged" in said.err
        assert json.loads(said.out)
