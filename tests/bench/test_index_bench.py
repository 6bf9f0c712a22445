"""``python -m bench index``: the workload is the one that is described, and every figure is measured."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.index.wire import payload
from bench.index.workload import PROMPT_TOKENS, Workload
from contract.events import BlockStored, decode_batch

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def work() -> Workload:
    return Workload(lanes=3, block=4, entries=6_000)


@pytest.mark.parametrize(("lanes", "events"), [(16, 60_272), (64, 58_050)])
def test_a_million_entries_take_the_known_number_of_events(lanes: int, events: int) -> None:
    work = Workload(lanes=lanes, block=1, entries=1_000_000)
    assert work.total in range(1_000_000, 1_000_000 + 512)
    assert sum(1 for _ in work.events()) == events


def test_every_event_continues_what_its_lane_was_told(work: Workload) -> None:
    told: set[tuple[int, int]] = set()
    entries = 0
    for event in work.events():
        assert event.parent is None or (event.lane, event.parent) in told
        assert len(event.tokens) == len(event.names) * work.block
        told |= {(event.lane, name) for name in event.names}
        entries += len(event.names)
    assert entries == len(told) == work.total >= 6_000


def test_the_same_workload_comes_again(work: Workload) -> None:
    again = Workload(lanes=3, block=4, entries=6_000)
    first, second = ([payload(event, 4) for event in one.events()] for one in (work, again))
    assert first == second
    assert isinstance(decode_batch(first[0]).events[0], BlockStored)


def test_prompts_continue_conversations_as_far_as_asked(work: Workload) -> None:
    held = {}
    for event in work.events():
        for place, name in enumerate(event.names):
            held[tuple(event.tokens[place * 4 : place * 4 + 4].tolist())] = (event.lane, name)
    for prompt in work.prompts(held=0.1, count=5):
        assert (len(prompt.tokens), prompt.blocks) == (PROMPT_TOKENS, 204)
        last = tuple(prompt.tokens[203 * 4 : 204 * 4])
        assert held[last][0] == prompt.lane
        assert tuple(prompt.tokens[204 * 4 : 205 * 4]) not in held


def test_every_figure_of_ours_is_measured_without_any_peer() -> None:
    command = [sys.executable, "-m", "bench", "index", "--quick", "--alone", "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    figures = [json.loads(line) for line in done.stdout.splitlines()]
    assert {one["metric"] for one in figures} == {"hash", "match", "look up", "ingest", "bytes"}
    assert {(one["bench"], one["subject"], one["runs"]) for one in figures} == {("index", "kvsteer", 1)}
    assert all(one["value"] > 0 for one in figures)
    assert {one["case"].rpartition(", ")[2] for one in figures if one["metric"] == "ingest"} == {
        "in process",
        "over ZMQ",
    }
