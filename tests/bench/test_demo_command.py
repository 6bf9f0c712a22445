"""The demo's flags: what they make, and one clear line where they make nothing."""

import argparse
import json
from pathlib import Path

import pytest

from bench.__main__ import main
from bench.demo.chats import ChatScenario
from bench.demo.command import add_command, make_scenario
from bench.demo.models import SMOLLM2
from bench.demo.scenario import Scenario
from bench.demo.trace import TraceScenario

ROW = '{"timestamp":%d,"input_length":%d,"output_length":20,"hash_ids":%s}\n'


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.jsonl"
    path.write_text(ROW % (0, 600, [0, 1]) + ROW % (1000, 2000, [0, 2, 3, 4]) + ROW % (3000, 512, [0]))
    return path


def scenario(*flags: str) -> Scenario:
    parser = argparse.ArgumentParser()
    add_command(parser.add_subparsers())
    return make_scenario(parser.parse_args(["demo", *flags]))


def test_without_flags_the_defaults_are_the_scenarios() -> None:
    assert scenario() == ChatScenario()


def test_flags_reach_the_chat_workload() -> None:
    made = scenario("--conversations", "5", "--turns", "2", "--replicas", "2", "--seed", "9")
    assert isinstance(made, ChatScenario)
    assert (made.requests, made.replicas, made.seed) == (10, 2, 9)


def test_a_model_brings_its_own_workload_which_flags_change(tmp_path: Path) -> None:
    texts = tmp_path / "texts.jsonl"
    rows = [{"category": "c", "turns": ["x" * 400, "y" * 400]} for _ in range(5)]
    texts.write_text("\n".join(map(json.dumps, rows)))
    made = scenario("--model", "smollm2", "--texts", str(texts), "--conversations", "3", "--turns", "1")
    assert isinstance(made, ChatScenario)
    assert (made.model, made.requests) == (SMOLLM2, 3)
    assert made.working_set == pytest.approx(3 * (400 / 4 + 8), rel=0.1)
    (process, *_) = made.engines()
    assert process.command[-4:] == ["--served-model-name", "smollm2", "--rank-backend", "threads"]
    (line,) = [line for line in made.setting() if line.startswith("workload: ")]
    assert "the first 3 sessions (3 requests) of texts.jsonl" in line


def test_a_trace_is_cut_to_the_first_rows_that_are_not_too_long_and_the_cut_is_counted(trace: Path) -> None:
    made = scenario("--trace", str(trace), "--requests", "2", "--max-input", "1000", "--max-output", "5")
    assert made.requests == 1
    (line,) = [line for line in made.setting() if line.startswith("cut: ")]
    assert line == (
        "cut: 1 prompts above 1000 tokens skipped, 1 later requests not played, 1 answers ended at 5 tokens"
    )


def test_a_trace_decides_context_length_and_cache(trace: Path) -> None:
    made = scenario("--trace", str(trace), "--max-output", "5", "--cache-share", "3")
    assert isinstance(made, TraceScenario)
    assert made.working_set == 5 * 512
    assert made.cache_tokens == 3 * 5 * 512
    assert 2005 < made.context_length <= 2005 + made.width
    assert made.context_length % made.width == 0


def test_a_small_share_still_leaves_room_for_the_longest_requests(trace: Path) -> None:
    made = scenario("--trace", str(trace), "--cache-share", "0.01")
    assert isinstance(made, TraceScenario)
    assert made.cache_tokens == 2 * made.context_length


def test_the_clock_runs_as_much_faster_as_the_trace(trace: Path) -> None:
    slow, fast = (TraceScenario(trace=trace, speedup=speedup).timing for speedup in (1.0, 8.0))
    assert fast.prefill_us_per_token * 8 == slow.prefill_us_per_token
    assert fast.step_us * 8 == slow.step_us


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["--speedup", "0"], "must be above 0"),
        (["--replicas", "0"], "must be at least 1"),
        (["--replicas", "many"], "invalid"),
        (["--model", "gpt"], "invalid choice"),
        (["--texts", "{trace}"], "texts only means something with --model smollm2"),
        (["--model", "smollm2", "--texts", "{missing}"], "No such file"),
        (["--model", "smollm2", "--texts", "{bad}"], "bad.jsonl, line 1: "),
        (["--model", "tiny", "--trace", "{trace}"], "model only means something without --trace"),
        (["--speedup", "3"], "speedup only means something with --trace"),
        (["--trace", "{missing}"], "No such file"),
        (["--trace", "{trace}", "--turns", "3"], "turns only means something without --trace"),
        (["--trace", "{trace}", "--max-input", "100"], "no row of the first 1000 has up to 100 tokens"),
        (["--trace", "{bad}"], "bad.jsonl, line 2: "),
        (["--logs", "{bad}"], "File exists"),
    ],
)
def test_what_cannot_be_played_ends_with_one_line(
    flags: list[str], reason: str, trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_text(ROW % (0, 600, [0, 1]) + ROW % (1000, 600, [0]))
    places = {"{missing}": str(tmp_path / "missing"), "{trace}": str(trace), "{bad}": str(bad)}
    try:
        status: object = main(["demo", *(places.get(flag, flag) for flag in flags)])
    except SystemExit as ended:
        status = ended.code
    message = capsys.readouterr().err
    assert status == 2
    assert reason in message
    assert len(message.splitlines()) == 1
