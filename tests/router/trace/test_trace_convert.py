"""``trace convert``: nothing is lost between a trace, frames in JSON lines, and a Mooncake-format workload."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import msgspec
import pytest
from made_trace import MadeTrace, store

from contract.events import AllBlocksCleared
from router.replay import Recording, read_recording
from router.trace.chunk import TraceFileError
from router.trace.flags import run_trace
from router.trace.played_trace import PlayedTrace
from router.trace.reader import TraceReader
from router.trace.records import Routed, StreamTurned, Turn

A, B = "http://10.0.0.1:30000", "http://10.0.0.2:30000"
PROMPT = list(range(100, 131))
REAL = Path(__file__).parents[4] / "shared" / "traces" / "mooncake_conversation_blk512.jsonl.gz"


def convert(source: Path, target: Path, *flags: str) -> Path:
    assert run_trace(["convert", str(source), str(target), *flags]) == 0
    return target


@pytest.mark.parametrize("name", ["sglang-page16-dp3", "sglang-page64", "vllm-dcp4", "vllm-extra", "vllm-hybrid-swa"])
def test_recorded_frames_survive_the_way_there_and_back(name: str, golden_dir: Path, tmp_path: Path) -> None:
    golden = golden_dir / f"{name}.jsonl"
    trace = convert(golden, tmp_path / "a.kvtrace")
    back = convert(trace, tmp_path / "back.jsonl", "--to", "frames")
    assert list(read_recording(back)) == list(read_recording(golden))
    recording = Recording()
    for frame in read_recording(golden):
        recording.feed(frame)
    played = PlayedTrace(trace).run()
    lanes = recording.record().lanes
    assert {str(lane.name.dp_rank): lane.status.last_seq for lane in played.lanes} == {
        rank: lane.last_seq for rank, lane in lanes.items()
    }
    blocks = {str(lane.name.dp_rank): len(played.index.blocks(lane.handle)) for lane in played.lanes}
    assert blocks == {rank: len(lane.blocks) for rank, lane in lanes.items()}


def test_the_width_beside_a_recording_is_the_block_width(golden_dir: Path, tmp_path: Path) -> None:
    """vLLM's meta says 16 and dcp 4, SGLang's says 64: both engines advertise 64."""
    for name in ("vllm-dcp4", "sglang-page64"):
        (lane,) = PlayedTrace(convert(golden_dir / f"{name}.jsonl", tmp_path / f"{name}.kvtrace")).run().lanes
        assert (lane.advertised_block_size, lane.width) == (64, 64)


def test_frames_that_a_replay_brought_stand_where_they_belong(tmp_path: Path) -> None:
    made = MadeTrace(A, can_replay=True)
    made.frame(0, AllBlocksCleared())
    made.frame(0, store(PROMPT[18:]), seq=3)
    for seq in (0, 1, 2, 3):
        made.frame(0, *([store(PROMPT[seq * 6 :])] if seq else [AllBlocksCleared()]), seq=seq, replayed=True)
    made.add(StreamTurned(at=made.at, lane=0, turn=Turn.REPLAY_ENDED))
    made.frame(0, store(PROMPT[24:]), seq=4)
    file = convert(made.write(tmp_path / "a.kvtrace"), tmp_path / "a.jsonl", "--to", "frames")
    assert [frame.seq for frame in read_recording(file)] == [0, 1, 2, 3, 4]


def rows(*lengths: int) -> list[dict[str, object]]:
    return [
        {
            "timestamp": 250 * place,
            "input_length": length,
            "output_length": 7 + place,
            "hash_ids": [46, *range(place * 100, place * 100 + -(-length // 512) - 1)],
        }
        for place, length in enumerate(lengths)
    ]


def test_a_workload_survives_the_way_there_and_back(tmp_path: Path) -> None:
    source = tmp_path / "a.jsonl.gz"
    source.write_bytes(gzip.compress(b"".join(json.dumps(row).encode() + b"\n" for row in rows(511, 512, 513, 5000))))
    trace = convert(source, tmp_path / "a.kvtrace")
    back = convert(trace, tmp_path / "b.jsonl", "--to", "mooncake")
    assert [json.loads(line) for line in back.read_text().splitlines()] == rows(511, 512, 513, 5000)
    packed = convert(trace, tmp_path / "c.jsonl.gz", "--to", "mooncake")
    assert gzip.decompress(packed.read_bytes()) == back.read_bytes()


@pytest.mark.skipif(not REAL.exists(), reason=f"{REAL.name} is not in ../shared/traces")
def test_a_public_workload_comes_back_byte_for_byte(tmp_path: Path) -> None:
    lines = gzip.decompress(REAL.read_bytes()).splitlines(keepends=True)[:500]
    source = tmp_path / "a.jsonl"
    source.write_bytes(b"".join(lines))
    back = convert(convert(source, tmp_path / "a.kvtrace"), tmp_path / "b.jsonl", "--to", "mooncake")
    assert back.read_bytes() == source.read_bytes()


def test_routed_requests_become_a_workload_in_which_equal_prefixes_have_equal_ids(tmp_path: Path) -> None:
    shared = list(range(1_100))
    made = MadeTrace(A)
    for tail in ([], [5] * 10, [6] * 10):
        made.request(0, shared + tail, predicted=0, reported=0, widths=(2, 64))
    trace = made.write(tmp_path / "a.kvtrace")
    file = convert(trace, tmp_path / "a.jsonl", "--to", "mooncake")
    found = [json.loads(line) for line in file.read_text().splitlines()]
    assert [row["input_length"] for row in found] == [1_100, 1_110, 1_110]
    assert [row["output_length"] for row in found] == [3, 3, 3]
    assert [row["timestamp"] for row in found] == [0, 3_000, 6_000]
    ids = [row["hash_ids"] for row in found]
    assert [one[:2] for one in ids] == [ids[0][:2]] * 3
    assert len({one[2] for one in ids}) == 3, "nobody knows what the rest of a prompt is equal to"


@pytest.mark.parametrize(
    ("text", "flags", "said"),
    [
        ("hello\n", (), "a.jsonl, line 1: neither a .kvtrace, nor a recorded frame, nor a request with hash_ids"),
        ("", (), "a.jsonl has no lines"),
        ('{"payload_b64": "!", "seq": 0}\n', (), "a.jsonl:1: not a recorded frame"),
        ('{"timestamp": 0, "input_length": 600, "output_length": 1, "hash_ids": [1]}\n', (), "a.jsonl, line 1"),
        (
            '{"timestamp": 0, "input_length": 6, "output_length": 1, "hash_ids": [18446744073709551616]}\n',
            (),
            "18446744073709551616",
        ),
    ],
)
def test_what_cannot_be_converted_is_named_and_leaves_nothing(
    text: str, flags: tuple[str, ...], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, target = tmp_path / "a.jsonl", tmp_path / "out.kvtrace"
    source.write_text(text)
    assert run_trace(["convert", str(source), str(target), *flags]) == 1
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert list(tmp_path.iterdir()) == [source]


@pytest.mark.parametrize("kind", ["frames", "mooncake"])
def test_a_trace_with_nothing_of_a_kind_makes_no_empty_file(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A conversion that was killed before has left half of something behind, which is nobody's."""
    trace = MadeTrace(A).write(tmp_path / "a.kvtrace")
    (tmp_path / "b.jsonl.part").write_text("half a line")
    assert run_trace(["convert", str(trace), str(tmp_path / "b.jsonl"), "--to", kind]) == 1
    assert f"{trace} has no " in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [trace]


def test_a_copy_of_a_damaged_trace_says_where_it_was_and_a_test_does_not_take_either(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = MadeTrace(A)
    for seq in range(200):
        made.frame(0, store([seq] * 60), seq=seq)
    trace, copy = made.write(tmp_path / "a.kvtrace"), tmp_path / "b.kvtrace"
    whole = trace.read_bytes()
    trace.write_bytes(whole[: len(whole) // 2] + b"?" + whole[len(whole) // 2 + 1 :])
    for command, target in [("convert", copy), ("redact", tmp_path / "c.kvtrace"), ("merge", tmp_path / "d.kvtrace")]:
        assert run_trace([command, str(trace), str(target)]) == 1
        assert capsys.readouterr().err.startswith(f"kvsteer-router trace {command}: {trace} is damaged: ")
        with pytest.raises(TraceFileError, match=f"{target} is damaged"):
            PlayedTrace(target).run()
    assert list(TraceReader(copy)) == list(TraceReader(trace))
    assert 0 < len(list(frames_of(copy, tmp_path, capsys))) < 200


def frames_of(trace: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> list[int]:
    """The numbers of the frames that are left."""
    assert run_trace(["convert", str(trace), str(folder / "left.jsonl"), "--to", "frames"]) == 1
    capsys.readouterr()
    return [frame.seq for frame in read_recording(folder / "left.jsonl")]


def test_frames_of_several_replicas_need_a_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = MadeTrace(A, B)
    made.frame(0, AllBlocksCleared())
    made.frame(1, store(PROMPT))
    trace = made.write(tmp_path / "a.kvtrace")
    assert run_trace(["convert", str(trace), str(tmp_path / "a.jsonl"), "--to", "frames"]) == 1
    assert f"name one by --replica: {A}, {B}" in capsys.readouterr().err
    file = convert(trace, tmp_path / "b.jsonl", "--to", "frames", "--replica", B)
    assert len(list(read_recording(file))) == 1
    assert run_trace(["convert", str(trace), str(file), "--to", "frames", "--replica", B]) == 1
    assert capsys.readouterr().err == f"kvsteer-router trace convert: {file} exists already\n"
    assert len(list(TraceReader(trace))) == 9


def test_a_request_whose_length_is_not_that_of_its_keys_is_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = MadeTrace(A)
    made.request(0, list(range(1_100)), predicted=0, reported=0, widths=(64,))
    made.request(0, list(range(1_100)), predicted=0, reported=0, widths=(64,))
    place = next(place for place, record in enumerate(made.records) if isinstance(record, Routed))
    made.records[place] = msgspec.structs.replace(made.records[place], prompt_tokens=9_000)
    trace, target = made.write(tmp_path / "a.kvtrace"), tmp_path / "b.jsonl"
    assert run_trace(["convert", str(trace), str(target), "--to", "mooncake"]) == 0
    assert [json.loads(line)["input_length"] for line in target.read_text().splitlines()] == [1_100]
    assert capsys.readouterr().err == "1 requests are left out: nobody knows their prompts\n"
