"""``kvsteer-router replay``: what it prints, what it makes of holes and restarts, how it refuses."""

from __future__ import annotations

import argparse
import base64
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from contract.events import AllBlocksCleared, BlockRemoved, BlockStored, Dialect, Event, encode_batch
from router.replay import add_replay_command

WIDTH = 6
A, B = list(range(10, 16)), list(range(20, 26))
_STAMPS = itertools.count()


def stored(name: int | bytes, tokens: list[int], *, parent: int | bytes | None = None) -> BlockStored:
    return BlockStored(
        block_hashes=[name], parent_block_hash=parent, token_ids=tokens, block_size=WIDTH, medium="GPU", group_idx=None
    )


def line(seq: int, *events: Event, rank: int | None = 0, payload: bytes | None = None, **more: object) -> str:
    if payload is None:
        payload = encode_batch(events, ts=next(_STAMPS), dp_rank=rank, dialect=Dialect.SGLANG)
    return json.dumps({"topic": "kv", "seq": seq, "payload_b64": base64.b64encode(payload).decode(), **more})


class Command:
    """The subcommand on a file of these lines."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.file = folder / "frames.jsonl"
        self._capsys = capsys

    def run(self, *lines: str, flags: tuple[str, ...] = ()) -> list[dict[str, Any]]:
        """What it prints, line by line."""
        self.file.write_text("".join(text + "\n" for text in lines))
        status, out, err = self.call(str(self.file), *flags)
        assert (status, err) == (0, "")
        return [json.loads(text) for text in out.splitlines()]

    def call(self, *arguments: str) -> tuple[int, str, str]:
        parser = argparse.ArgumentParser()
        add_replay_command(parser.add_subparsers())
        args = parser.parse_args(["replay", *arguments])
        status: int = args.run(args)
        captured = self._capsys.readouterr()
        return status, captured.out, captured.err


@pytest.fixture
def command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(tmp_path, capsys)


def test_one_line_at_the_end_says_it_all(command: Command) -> None:
    (record,) = command.run(line(0, AllBlocksCleared(), stored(-1, A)), line(1, stored(5, B, parent=-1)))
    assert record == {
        "seq": 1,
        "lanes": {
            "0": {
                "last_seq": 1,
                "gaps": 0,
                "lost": 0,
                "rejected_events": 0,
                "blocks": [
                    {"hash": "5", "tier": "GPU", "group": None, "copies": 1},
                    {"hash": str(2**64 - 1), "tier": "GPU", "group": None, "copies": 1},
                ],
            }
        },
        "matched_tokens": 0,
    }


def test_each_prints_a_line_after_every_frame(command: Command) -> None:
    lines = [line(0, stored(1, A)), line(1, stored(2, B, parent=1)), line(2, BlockRemoved(block_hashes=[2]))]
    records = command.run(*lines, flags=("--each", "--prompt", json.dumps(A + B)))
    assert [(record["seq"], record["matched_tokens"]) for record in records] == [(0, 6), (1, 12), (2, 6)]


def test_the_best_lane_counts_and_lanes_are_told_apart_by_rank(command: Command) -> None:
    lines = [line(0, stored(1, A), rank=None), line(0, stored(1, A), stored(2, B, parent=1), rank=3)]
    (record,) = command.run(*lines, flags=("--prompt", json.dumps(A + B)))
    assert (list(record["lanes"]), record["matched_tokens"]) == (["0", "3"], 12)


def test_byte_hashes_are_hex(command: Command) -> None:
    (record,) = command.run(line(0, stored(b"\x00\xff" * 16, A)))
    assert [block["hash"] for block in record["lanes"]["0"]["blocks"]] == ["00ff" * 16]


def test_holes_are_gaps_and_their_batches_lost(command: Command) -> None:
    (record,) = command.run(line(4), line(5, stored(1, A)), line(8, stored(2, B)), line(12))
    lane = record["lanes"]["0"]
    assert (lane["last_seq"], lane["gaps"], lane["lost"], len(lane["blocks"])) == (12, 2, 5, 2)


def test_the_same_line_twice_counts_once(command: Command) -> None:
    first, second = line(0, stored(1, A)), line(1, stored(2, B))
    (record,) = command.run(first, second, first, second)
    lane = record["lanes"]["0"]
    assert (lane["last_seq"], [block["copies"] for block in lane["blocks"]]) == (1, [1, 1])


def test_a_number_that_goes_back_is_another_engine(command: Command) -> None:
    (record,) = command.run(line(500, stored(1, A)), line(0, stored(2, B)), line(1))
    lane = record["lanes"]["0"]
    assert (lane["last_seq"], lane["lost"], [block["hash"] for block in lane["blocks"]]) == (1, 0, ["2"])


def test_what_is_no_event_batch_is_counted_in_the_lane_whose_turn_it_is(command: Command) -> None:
    lines = [line(0, rank=0), line(0, rank=1), line(1, rank=0), line(1, payload=b"\xc1"), line(2, rank=1)]
    (record,) = command.run(*lines)
    ranks = {rank: (lane["rejected_events"], lane["lost"]) for rank, lane in record["lanes"].items()}
    assert ranks == {"0": (0, 0), "1": (1, 0)}


def test_other_fields_and_empty_lines_are_ignored(command: Command) -> None:
    (record,) = command.run(line(0, stored(1, A), case="mixed", port=5557), "", "  ")
    assert record["seq"] == 0


def test_an_advertised_width_is_no_match_by_itself(command: Command) -> None:
    (record,) = command.run(line(0, stored(1, A)), flags=("--block-size", "3", "--prompt", json.dumps(A)))
    assert record["matched_tokens"] == WIDTH, "events win"


def test_no_frames_at_all_is_an_answer_too(command: Command) -> None:
    assert command.run() == [{"seq": None, "lanes": {}, "matched_tokens": 0}]


@pytest.mark.parametrize(
    "garbage",
    [
        "garbage",
        "[]",
        '{"seq": 1}',
        '{"seq": -1, "payload_b64": ""}',
        '{"seq": "1", "payload_b64": ""}',
        '{"seq": 1, "payload_b64": "not base64!"}',
        '{"seq": 18446744073709551615, "payload_b64": ""}',
        '{"seq": 1, "payload_b64": "", "other": ' + "[" * 5000 + "]" * 5000 + "}",
    ],
)
def test_a_line_that_is_no_frame_ends_it_with_file_and_line(command: Command, garbage: str) -> None:
    command.file.write_text(f"{line(0)}\n\n{garbage}\n{line(1)}\n")
    status, out, err = command.call(str(command.file))
    assert (status, out, err.count("\n")) == (1, "", 1)
    assert f"{command.file}:3: " in err


def test_a_file_that_is_not_there_ends_it_in_one_line(command: Command) -> None:
    status, out, err = command.call(str(command.file))
    assert (status, out) == (1, "")
    assert err == f"kvsteer-router replay: {command.file}: No such file or directory\n"


@pytest.mark.parametrize(
    "flags",
    [
        ("--prompt", "nonsense"),
        ("--prompt", "[1.5]"),
        ("--prompt", "[-1]"),
        ("--prompt", '"text"'),
        ("--block-size", "0"),
        ("--block-size", "x"),
    ],
)
def test_flags_that_make_no_sense_are_refused(command: Command, flags: tuple[str, str]) -> None:
    with pytest.raises(SystemExit) as caught:
        command.call("file", *flags)
    assert caught.value.code == 2


def test_the_console_command_runs_it(golden_dir: Path) -> None:
    arguments = [sys.executable, "-m", "router", "replay", str(golden_dir / "sglang-page16.jsonl")]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(done.stdout)["lanes"]["0"]["last_seq"] == 13


@pytest.mark.parametrize("flags", [(), ("--each",)])
@pytest.mark.parametrize(
    ("target", "said"), [(None, ""), ("/dev/full", "kvsteer-router replay: cannot print: No space left on device\n")]
)
def test_output_that_cannot_be_written_ends_it_without_a_traceback(
    golden_dir: Path, flags: tuple[str, ...], target: str | None, said: str
) -> None:
    arguments = [sys.executable, "-m", "router", "replay", str(golden_dir / "sglang-page16.jsonl"), *flags]
    reading, writing = os.pipe() if target is None else (None, os.open(target, os.O_WRONLY))
    if reading is not None:
        os.close(reading)
    try:
        done = subprocess.run(arguments, stdout=writing, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (1, said)
