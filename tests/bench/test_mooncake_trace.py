"""Reading Mooncake-format traces, and the token ids made of them."""

import gzip
import json
from pathlib import Path

import pytest

from bench.mooncake import prompt_tokens
from router.trace.lines import TraceError
from router.trace.mooncake import BLOCK_TOKENS, TraceRow, read_trace

ROWS = [
    {"timestamp": 0, "input_length": 513, "output_length": 4, "hash_ids": [0, 1]},
    {"timestamp": 2500, "input_length": 512, "output_length": 0, "hash_ids": [0]},
]


def write(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n")
    return path


def test_rows_are_read_in_order_and_blank_lines_passed_over(tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", json.dumps(ROWS[0]), "", json.dumps(ROWS[1]))
    assert list(read_trace(path)) == [TraceRow(0, 513, 4, [0, 1]), TraceRow(2500, 512, 0, [0])]


@pytest.mark.parametrize("name", ["t.jsonl.gz", "t.jsonl"])
def test_gzip_is_known_by_its_content_not_by_its_name(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(gzip.compress("\n".join(map(json.dumps, ROWS)).encode()))
    assert [row.timestamp for row in read_trace(path)] == [0, 2500]


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ("{", "truncated"),
        ("[]", "Expected `object`"),
        ('{"timestamp":1,"input_length":5,"output_length":1}', "hash_ids"),
        ('{"timestamp":1,"input_length":0,"output_length":1,"hash_ids":[]}', "input_length"),
        ('{"timestamp":1,"input_length":1025,"output_length":1,"hash_ids":[1,2]}', "need 3 hash ids, got 2"),
        ('{"timestamp":1,"input_length":5,"output_length":1,"hash_ids":["a"]}', "hash_ids"),
        ('{"timestamp":-1,"input_length":5,"output_length":1,"hash_ids":[1]}', "timestamp"),
    ],
)
def test_a_bad_line_is_named_with_its_file_and_number(tmp_path: Path, bad: str, reason: str) -> None:
    path = write(tmp_path / "t.jsonl", json.dumps(ROWS[0]), "", bad)
    with pytest.raises(TraceError) as caught:
        list(read_trace(path))
    message = str(caught.value)
    assert message.startswith(f"{path}, line 3: ")
    assert reason in message
    assert "\n" not in message


def test_time_that_runs_backwards_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", json.dumps(ROWS[1]), json.dumps(ROWS[0]))
    with pytest.raises(TraceError, match=r"line 2: timestamp 0 is before 2500"):
        list(read_trace(path))


def test_a_missing_file_and_a_truncated_archive_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"no\.jsonl: No such file or directory$"):
        list(read_trace(tmp_path / "no.jsonl"))
    cut = tmp_path / "cut.gz"
    cut.write_bytes(gzip.compress(json.dumps(ROWS[0]).encode())[:-6])
    with pytest.raises(TraceError, match=r"cut\.gz: Compressed file ended"):
        list(read_trace(cut))


def test_equal_ids_are_equal_tokens_and_equal_prefixes() -> None:
    long = prompt_tokens(TraceRow(0, 3 * BLOCK_TOKENS, 1, [7, 8, 9]), seed=3)
    short = prompt_tokens(TraceRow(0, BLOCK_TOKENS + 100, 1, [7, 8]), seed=3)
    other = prompt_tokens(TraceRow(0, 2 * BLOCK_TOKENS, 1, [9, 8]), seed=3)
    assert short == long[: len(short)]
    assert other[:BLOCK_TOKENS] == long[2 * BLOCK_TOKENS :]
    assert other[BLOCK_TOKENS:] == long[BLOCK_TOKENS : 2 * BLOCK_TOKENS]


def test_tokens_fill_the_input_length_stay_in_every_vocabulary_and_depend_on_the_seed() -> None:
    row = TraceRow(0, BLOCK_TOKENS + 1, 1, [1, 2])
    tokens = prompt_tokens(row, seed=0)
    assert len(tokens) == row.input_length
    assert all(0 <= token < 256 for token in tokens)
    assert tokens == prompt_tokens(row, seed=0) != prompt_tokens(row, seed=1)
