"""Real chat texts as conversations to play: recorded agents (LMCache's agent traces), or the questions of MT-Bench.

An agent's requests come delta coded: ``input = previous_input[:keep] + append`` in file order. Each says all that its
agent wants the model to know, so its turns start over; what they share with each other is in their texts. A question
has two turns, and a system prompt for its category. What is too long for the demo is passed over.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from random import Random
from typing import Annotated

import msgspec

from bench.chat import ChatShape, Conversation, Turn
from router.trace.lines import TraceError, read_lines

__all__ = ["MAX_CHARS", "find_texts", "read_conversations"]

MAX_CHARS = 5200
"""Longest text of one turn, about 1,300 tokens."""
_FILES = ("lmcache_agent_magagent_text.jsonl.gz", "mt_bench_questions.jsonl.gz")
_FOLDER = Path(__file__).parent.parent.parent / "shared" / "traces"


class _AgentRow(msgspec.Struct):
    session_id: str
    keep: Annotated[int, msgspec.Meta(ge=0)]
    append: str


class _Question(msgspec.Struct):
    category: str
    turns: list[str]


def find_texts(folder: Path = _FOLDER) -> Path | None:
    """The recording to play where nobody names one: agents before questions, nothing where there is neither."""
    return next((folder / name for name in _FILES if (folder / name).is_file()), None)


def read_conversations(path: Path, shape: ChatShape, *, seed: int) -> list[Conversation]:
    """The first ``shape.conversations`` of the file that have ``shape.turns`` turns (questions: two).

    Raises:
        TraceError: the file cannot be read, a line is neither of both, or no conversation is short enough.
    """
    random = Random(seed)
    found: list[Conversation] = []
    for tenant, (system, texts, fresh) in enumerate(_sessions(path, turns=shape.turns)):
        if len(found) == shape.conversations:
            break
        turns = tuple(
            Turn(text, max_tokens=shape.answer_tokens, stream=random.random() < shape.streamed_share, fresh=fresh)
            for text in texts
        )
        found.append(Conversation(tenant, system, turns))
    if not found:
        raise TraceError(f"{path}: no conversation of {shape.turns} turns with up to {MAX_CHARS} characters each")
    return found


def _sessions(path: Path, *, turns: int) -> Iterator[tuple[str, list[str], bool]]:
    """System prompt, texts of the turns, and whether each starts over."""
    rows = list(_rows(path))
    for texts in _agent_texts(row for row in rows if isinstance(row, _AgentRow)):
        if len(texts) >= turns:
            yield "", texts[:turns], True
    for row in rows:
        if isinstance(row, _Question) and max(map(len, row.turns), default=0) <= MAX_CHARS:
            yield f"You are an assistant for {row.category} tasks. Answer as well as you can.", row.turns[:turns], False


def _agent_texts(rows: Iterable[_AgentRow]) -> Iterable[list[str]]:
    """What each session's agents ask that is not too long, in order."""
    sessions: dict[str, list[str]] = {}
    text = ""
    for row in rows:
        text = text[: row.keep] + row.append
        if 0 < len(text) <= MAX_CHARS:
            sessions.setdefault(row.session_id, []).append(text)
    return sessions.values()


def _rows(path: Path) -> Iterator[_AgentRow | _Question]:
    for number, line in read_lines(path):
        try:
            yield msgspec.json.decode(line, type=_Question if b'"turns"' in line else _AgentRow)
        except msgspec.MsgspecError as error:
            raise TraceError(f"{path}, line {number}: {error}") from None
