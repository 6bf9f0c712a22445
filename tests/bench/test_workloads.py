"""Workloads: what each format's reader makes of its rows, and what bad rows are called."""

from __future__ import annotations

import gzip
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from bench.workloads.choose import Reading, generated_workload, open_workload
from bench.workloads.generated import Shape
from bench.workloads.request import Ask
from bench.workloads.tempo import MAX_PAUSE, Turn, timed
from router.trace.lines import TraceError

TRACES = Path(__file__).parent.parent.parent.parent / "shared" / "traces"


def write(path: Path, *rows: Any) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def read(path: Path, **reading: Any) -> list[Ask]:
    return list(open_workload([path], Reading(**reading)).asks)


def common(one: Ask, other: Ask) -> int:
    """Leading blocks of one content."""
    pairs = enumerate(zip(one.blocks, other.blocks, strict=False))
    return next((place for place, (left, right) in pairs if left != right), min(len(one.blocks), len(other.blocks)))


MOONCAKE = [
    {"timestamp": 0, "input_length": 1100, "output_length": 4, "hash_ids": [0, 1, 2]},
    {"timestamp": 2500, "input_length": 1024, "output_length": 0, "hash_ids": [0, 3]},
]


def test_mooncake_rows_keep_their_ids_and_lose_the_block_that_is_not_full(tmp_path: Path) -> None:
    workload = open_workload([write(tmp_path / "a.jsonl", *MOONCAKE)], Reading())
    assert (workload.name, workload.block_tokens) == ("a", 512)
    expected = [Ask(0.0, (0, 1), 1100, 4), Ask(2.5, (0, 3), 1024, 0)]
    assert list(workload.asks) == expected
    assert list(workload.asks) == expected, "read anew"


@pytest.mark.parametrize(("block_tokens", "shared"), [(128, 4), (256, 2), (1024, 0)])
def test_ids_of_one_width_become_ids_of_another(tmp_path: Path, block_tokens: int, shared: int) -> None:
    one, other = read(write(tmp_path / "a.jsonl", *MOONCAKE), block_tokens=block_tokens)
    assert (len(one.blocks), len(other.blocks)) == (1100 // block_tokens, 1024 // block_tokens)
    assert common(one, other) == shared
    assert len(set(one.blocks)) == len(one.blocks)


def request(at: float, tokens: int, *runs: list[int], kind: str = "s") -> dict[str, Any]:
    return {"t": at, "type": kind, "in": tokens, "out": 3, "hash_runs": list(runs)}


def session(*requests: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"block_size": 64, "tool_tokens": 128, "system_tokens": 64, "requests": list(requests), **more}


SESSIONS = [
    session(
        request(0, 320, [0, 5]),
        {"t": 10, "type": "subagent", "requests": [request(1, 200, [0, 2], [40, 1])]},
        request(5, 400, [0, 6]),
        request(500, 450, [0, 7]),
    ),
    session(request(0, 320, [0, 5])),
    session(request(0, 320, [0, 5]), system_tokens=0),
]


def test_coding_sessions_run_side_by_side_each_at_its_own_pace_with_subagents_inside(tmp_path: Path) -> None:
    asks = read(write(tmp_path / "s.jsonl", *SESSIONS))
    assert [ask.at for ask in asks] == sorted(ask.at for ask in asks)
    first = [ask for ask in asks if ask.session == 0]
    assert [ask.tokens for ask in first] == [320, 400, 200, 450]
    pauses = [later.at - earlier.at for earlier, later in pairwise(first)]
    assert pauses == pytest.approx([5, 6, MAX_PAUSE])
    assert [common(first[0], ask) for ask in first] == [5, 5, 2, 5]


@pytest.mark.parametrize(("shared_heads", "expected"), [(True, (3, 0)), (False, (0, 0))])
def test_sessions_of_one_kind_may_share_their_head(
    tmp_path: Path, shared_heads: bool, expected: tuple[int, int]
) -> None:
    """Three blocks of tools and system prompt; the third session has no system prompt, and is of another kind."""
    asks = read(write(tmp_path / "s.jsonl", *SESSIONS), shared_heads=shared_heads)
    first, second, third = (next(ask for ask in asks if ask.session == number) for number in range(3))
    assert (common(first, second), common(first, third)) == expected


RAG = [
    {"segment_token_length": {"7": 20, "8": 12, "9": 30}},
    {"timestamp": "3", "output_length": 5, "hash_ids": {"sys_prompt": [7], "history": [], "user_input": [9]}},
    {"timestamp": "4.5", "output_length": 5, "hash_ids": {"sys_prompt": [7], "history": [8], "user_input": [9]}},
    {"timestamp": "0", "output_length": 5, "hash_ids": {"sys_prompt": [7, 8], "user_input": [9]}},
]


def test_segments_become_blocks_that_are_equal_where_the_same_piece_lies_at_the_same_place(tmp_path: Path) -> None:
    three, one, two = read(write(tmp_path / "r.jsonl", *RAG), block_tokens=8)
    assert [ask.tokens for ask in (one, two, three)] == [50, 62, 62]
    assert common(one, two) == 2, "20 tokens in common make two blocks of 8"
    assert two.blocks == three.blocks, "which part of the prompt a segment belongs to is no content"
    assert [ask.at for ask in (three, one, two)] == [0.0, 3.0, 4.5], "the file is in no order of time"


AGENTS = [
    {"session_id": "a", "timestamp_us": 5_000_000, "keep": 0, "append": "x" * 200, "output": "yyyyyyyy"},
    {"session_id": "a", "timestamp_us": 7_000_000, "keep": 150, "append": "z" * 100},
    {"session_id": "b", "timestamp_us": 1_000_000, "keep": 70, "append": "w" * 10},
]


def test_delta_coded_texts_are_put_together_in_file_order(tmp_path: Path) -> None:
    asks = read(write(tmp_path / "t.jsonl", *AGENTS))
    one, two = (ask for ask in asks if ask.session == 0)
    (three,) = (ask for ask in asks if ask.session == 1)
    assert [(ask.tokens, len(ask.blocks)) for ask in (one, two, three)] == [(50, 3), (62, 3), (20, 1)]
    assert one.output_tokens == 2
    assert two.at - one.at == pytest.approx(2.0)
    assert (common(one, two), common(one, three)) == (2, 1)


def test_a_tokenizer_s_ids_make_the_blocks_where_one_is_given(tmp_path: Path) -> None:
    asks = read(write(tmp_path / "t.jsonl", *AGENTS), encode=lambda text: list(text.encode()), block_tokens=50)
    assert [(ask.tokens, len(ask.blocks)) for ask in asks if ask.session == 0] == [(200, 4), (250, 5)]


def test_agents_texts_may_come_in_several_files_and_nothing_else_may(tmp_path: Path) -> None:
    texts = [write(tmp_path / name, *AGENTS) for name in ("one.jsonl", "two.jsonl")]
    workload = open_workload(texts, Reading())
    assert workload.name == "one+two"
    assert {ask.session for ask in workload.asks} == {0, 1, 2, 3}
    rows = write(tmp_path / "m.jsonl", *MOONCAKE)
    with pytest.raises(TraceError, match="is one file"):
        open_workload([rows, rows], Reading())


def test_token_ids_and_chats_are_read(tmp_path: Path) -> None:
    ids = {"arrival_time_ns": 2_000_000_000, "output_toks": 3, "input_tok_ids": list(range(40))}
    (ask,) = read(write(tmp_path / "i.jsonl", ids))
    assert (ask.at, ask.tokens, len(ask.blocks), ask.output_tokens) == (2.0, 40, 2, 3)
    chats = read(write(tmp_path / "c.jsonl", *[{"input": "q" * 80, "output_length": 9}] * 2))
    assert [(ask.tokens, len(ask.blocks), ask.output_tokens) for ask in chats] == [(20, 1, 9)] * 2
    assert chats[0].blocks == chats[1].blocks


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ([MOONCAKE[0], {**MOONCAKE[1], "hash_ids": [1]}], "line 2: .*need 2 hash ids, got 1"),
        ([*SESSIONS, session(request(-1, 3, [0, 1]))], "line 4: .*>= 0"),
        ([*SESSIONS, session(request(0, 3, [0, 1 << 30]))], "line 4: .*<= 1048576"),
        ([SESSIONS[0], session(block_size=48)], "line 2: blocks of 48 tokens do not make blocks of 64"),
        ([*RAG, {**RAG[1], "timestamp": "soon"}], "line 5: timestamp 'soon' is no time"),
        ([*RAG, {**RAG[1], "hash_ids": {"history": [77]}}], "line 5: segment 77 has no length"),
        ([AGENTS[0], {"session_id": "a"}], "line 2: .*timestamp_us"),
        ([{"input_tok_ids": [1 << 40], "arrival_time_ns": 1, "output_toks": 1}], "line 1: .*<= 4294967295"),
        ([{"question": 1}], "line 1: fields question are of no known format"),
        ([[1]], "line 1: Expected `object`"),
    ],
)
def test_a_bad_row_is_one_line_that_names_file_row_and_value(tmp_path: Path, rows: list[Any], reason: str) -> None:
    path = write(tmp_path / "bad.jsonl", *rows)
    with pytest.raises(TraceError, match=reason) as caught:
        read(path)
    assert str(caught.value).startswith(f"{path}, ")
    assert "\n" not in str(caught.value)


def test_blocks_that_cannot_be_cut_so_are_refused_and_an_empty_file_too(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="blocks of 512 tokens do not make blocks of 48"):
        read(write(tmp_path / "a.jsonl", *MOONCAKE), block_tokens=48)
    with pytest.raises(TraceError, match="empty"):
        read(write(tmp_path / "e.jsonl"))


def test_a_packed_file_is_known_by_its_content(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(gzip.compress(json.dumps(MOONCAKE[0]).encode()))
    assert [ask.blocks for ask in read(path)] == [(0, 1)]


def test_only_sessions_that_have_begun_are_open() -> None:
    opened = []

    def sessions() -> Any:
        for number in range(1000):
            opened.append(number)
            yield [Turn(0.0, (), 1, 1), Turn(5.0, (), 1, 1)]

    asks = timed(sessions(), mean_gap=100.0, seed=1)
    for _ in range(10):
        next(asks)
    assert len(opened) < 10


def test_made_up_traffic_is_a_seed_s_own_and_shares_roots_by_their_popularity() -> None:
    shape = Shape(requests=2000, roots=20, root_tokens=256)
    asks = list(generated_workload(shape, seed=3).asks)
    assert asks == list(generated_workload(shape, seed=3).asks) != list(generated_workload(shape, seed=4).asks)
    assert len(asks) == 2000
    assert [ask.at for ask in asks] == sorted(ask.at for ask in asks)
    assert all(len(ask.blocks) == ask.tokens // 64 for ask in asks)
    firsts = {ask.session: ask for ask in reversed(asks)}
    roots = sorted(ask.blocks[0] for ask in firsts.values())
    assert roots.count(0) > 2 * roots.count(10 * 4) > 0
    turns = [ask for ask in asks if ask.session == asks[0].session]
    assert all(later.blocks[: len(earlier.blocks)] == earlier.blocks for earlier, later in pairwise(turns))


@pytest.mark.skipif(not TRACES.is_dir(), reason=f"no recorded traces in {TRACES}")
@pytest.mark.parametrize(
    ("name", "requests", "mean_tokens", "hit"),
    [
        ("mooncake_conversation_blk512.jsonl.gz", 12_031, 12_035, 0.3734),
        ("llmservingsim_sharegpt_pulse50_llama31_tokids.jsonl.gz", 300, 275, 0.2573),
    ],
)
def test_public_traces_have_the_reuse_that_is_published_of_them(
    name: str, requests: int, mean_tokens: int, hit: float
) -> None:
    """Requests, their mean input, and the share of them that an unlimited cache would have held."""
    workload = open_workload([TRACES / name], Reading())
    seen: set[tuple[int, int]] = set()
    found = total = count = 0
    for ask in workload.asks:
        count, total, path = count + 1, total + ask.tokens, 0
        for block in ask.blocks:
            path = hash((path, block))
            found += (path, block) in seen
            seen.add((path, block))
    assert (count, round(total / count)) == (requests, mean_tokens)
    assert found * workload.block_tokens / total == pytest.approx(hit, abs=0.0005)
