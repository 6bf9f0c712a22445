"""Real chat texts: two kinds of recordings as conversations, cut as asked, and one line for what is neither."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from bench.chat import ChatShape
from bench.texts import MAX_CHARS, find_texts, read_conversations
from router.trace.lines import TraceError


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_bytes(gzip.compress("\n".join(json.dumps(row, ensure_ascii=False) for row in rows).encode()))
    return path


def agent(session: str, keep: int, append: str) -> dict[str, Any]:
    return {"agent": "a", "session_id": session, "timestamp_us": 1, "keep": keep, "append": append, "output": "x"}


def shape(*, conversations: int = 9, turns: int = 2) -> ChatShape:
    return ChatShape(conversations=conversations, turns=turns, answer_tokens=5)


def test_agents_requests_are_whole_texts_that_start_over(tmp_path: Path) -> None:
    rows = [agent("s", 0, "Ask:é"), agent("t", 0, "Other"), agent("s", 0, "Ask:é more"), agent("s", 5, " third")]
    (conversation,) = read_conversations(write(tmp_path / "agents.gz", rows), shape(turns=3), seed=0)
    assert conversation.system == ""
    assert [turn.user for turn in conversation.turns] == ["Ask:é", "Ask:é more", "Ask:é third"]
    assert all(turn.fresh and turn.max_tokens == 5 for turn in conversation.turns)


def test_texts_that_are_too_long_are_passed_over_but_still_built_upon(tmp_path: Path) -> None:
    rows = [agent("s", 0, "x" * (MAX_CHARS + 1)), agent("s", MAX_CHARS, ""), agent("s", 10, "")]
    (conversation,) = read_conversations(write(tmp_path / "agents.gz", rows), shape(), seed=0)
    assert [len(turn.user) for turn in conversation.turns] == [MAX_CHARS, 10]


def test_questions_have_a_system_prompt_for_their_category(tmp_path: Path) -> None:
    rows = [{"question_id": n, "category": "maths", "turns": [f"first {n}", "second"]} for n in range(4)]
    found = read_conversations(write(tmp_path / "questions.gz", rows), shape(conversations=3), seed=0)
    assert len(found) == 3
    assert len({conversation.system for conversation in found}) == 1
    assert "maths" in found[0].system
    assert [turn.user for turn in found[1].turns] == ["first 1", "second"]
    assert not any(turn.fresh for conversation in found for turn in conversation.turns)


def test_the_seed_decides_what_is_streamed_and_nothing_else(tmp_path: Path) -> None:
    rows = [{"category": "c", "turns": ["a", "b"]} for _ in range(9)]
    path = write(tmp_path / "questions.gz", rows)
    one, same, other = (read_conversations(path, shape(), seed=seed) for seed in (1, 1, 2))
    assert one == same != other


@pytest.mark.parametrize(
    ("rows", "complaint"),
    [
        ([], "no conversation of 2 turns"),
        ([agent("s", 0, "only one")], "no conversation of 2 turns with up to 5200 characters each"),
        ([{"session_id": "s"}], "line 1: Object missing required field"),
        ([{"turns": 3}], "line 1: "),
        ([agent("s", -1, "x")], "line 1: "),
    ],
)
def test_what_is_no_recording_of_chats_is_one_line(tmp_path: Path, rows: list[dict[str, Any]], complaint: str) -> None:
    with pytest.raises(TraceError, match=complaint) as caught:
        read_conversations(write(tmp_path / "some.gz", rows), shape(), seed=0)
    assert "some.gz" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_agents_are_found_before_questions_and_nothing_where_nothing_is(tmp_path: Path) -> None:
    assert find_texts(tmp_path) is None
    questions = write(tmp_path / "mt_bench_questions.jsonl.gz", [])
    assert find_texts(tmp_path) == questions
    agents = write(tmp_path / "lmcache_agent_magagent_text.jsonl.gz", [])
    assert find_texts(tmp_path) == agents
