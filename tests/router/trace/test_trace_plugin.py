"""The pytest fixture as another project has it: by name, in its own folder. Two of its tests must fail, and do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from made_trace import MadeTrace, store

from contract.events import AllBlocksCleared

A = "http://10.0.0.1:30000"
PROMPT = list(range(100, 131))
THEIR_TESTS = f"""
import pytest

PROMPT = {PROMPT}

@pytest.mark.parametrize("name", ["sound", "wide", "lost"])
def test_it_is_sound(kvtrace, name):
    trace = kvtrace(f"traces/{{name}}.kvtrace")
    (lane,) = trace.lanes
    assert lane is trace.lane("{A}")
    assert trace.matched_tokens(PROMPT) == {{lane.name: 30}}
    assert [request.reported for request in trace.requests] == [0, 24]
    trace.check()
    assert not trace.faults

def test_before_the_first_store_nothing_is_found(kvtrace):
    trace = kvtrace("traces/sound.kvtrace", whole=False)
    assert not trace.lanes
    for record in trace.steps():
        if type(record).__name__ == "StreamJoined":
            (lane,) = trace.lanes
            assert trace.matched_tokens(PROMPT) == {{lane.name: 0}}
    assert trace.matched_tokens(PROMPT) == {{lane.name: 30}}
    assert trace.step() is None
"""


def record(path: Path, *, advertised: int = 6, lost: int = 0) -> None:
    """An engine whose blocks are 6 wide, whatever it advertises, and a prompt that is asked twice."""
    made = MadeTrace(A, advertised=advertised)
    made.frame(0, AllBlocksCleared())
    made.request(0, PROMPT, predicted=0, reported=0)
    made.frame(0, store(PROMPT), seq=1 + lost)
    made.request(0, PROMPT, predicted=24, reported=24)
    made.write(path)


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What pytest says of the other project's tests, which have nothing of this one but what is installed."""
    folder = tmp_path_factory.mktemp("theirs")
    (folder / "traces").mkdir()
    record(folder / "traces" / "sound.kvtrace")
    record(folder / "traces" / "wide.kvtrace", advertised=3)
    record(folder / "traces" / "lost.kvtrace", lost=2)
    (folder / "test_engine.py").write_text(THEIR_TESTS)
    plugins = ("-p", "no:cacheprovider", "-p", "no:asyncio")
    command = [sys.executable, "-m", "pytest", "-v", *plugins, "-W", "error", "test_engine.py"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stdout


def test_a_sound_trace_passes_whole_and_step_by_step(said: str) -> None:
    assert "test_it_is_sound[sound] PASSED" in said
    assert "test_before_the_first_store_nothing_is_found PASSED" in said
    assert "2 failed, 2 passed" in said


def test_a_width_that_is_not_the_blocks_fails_by_name(said: str) -> None:
    assert "test_it_is_sound[wide] FAILED" in said
    assert f"AssertionError: {A}#0: width-mismatch: rank 0 advertises block_size 3 and its events carry 6" in said


def test_a_lost_batch_fails_by_name(said: str) -> None:
    assert "test_it_is_sound[lost] FAILED" in said
    assert f"AssertionError: {A}#0: stream-lost: rank 0: 2 event batches never came" in said
