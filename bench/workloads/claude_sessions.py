"""Recorded coding-agent sessions as requests: kv-cache-tester's traces of Claude Code, one session a line.

A session's block ids are its own, in runs; subagents run inside it and share them. A recording does not say that two
sessions begin with the same tool definitions and system prompt, but a fleet would have them cached: with
``shared_heads`` those of equal lengths are taken for the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import msgspec

from bench.workloads.blocks import MAX_ID, resized, resizes
from bench.workloads.rows import read_rows
from bench.workloads.tempo import Turn
from router.trace.lines import TraceError

__all__ = ["MEAN_GAP", "BlockSize", "read_claude_sessions"]

MEAN_GAP = 30.0
"""Seconds from one session's start to the next."""

SUBAGENT = "subagent"
MAX_BLOCKS = 1 << 20
"""Of one request: with blocks of 64 tokens, 67 million tokens."""

BlockSize = Annotated[int, msgspec.Meta(ge=1, le=1 << 20)]
_Count = Annotated[int, msgspec.Meta(ge=0)]
_Seconds = Annotated[float, msgspec.Meta(ge=0)]
_Run = tuple[Annotated[int, msgspec.Meta(ge=0, le=MAX_ID)], Annotated[int, msgspec.Meta(ge=0, le=MAX_BLOCKS)]]


class _Request(msgspec.Struct, rename={"input_tokens": "in", "output_tokens": "out", "at": "t", "kind": "type"}):
    """``at`` in seconds from the session's start, or from the marker of the subagent that it is part of."""

    at: _Seconds
    kind: str
    input_tokens: _Count = 0
    output_tokens: _Count = 0
    hash_runs: list[_Run] = []
    requests: list[_Request] = []


class _Session(msgspec.Struct):
    block_size: BlockSize
    requests: list[_Request]
    tool_tokens: _Count = 0
    system_tokens: _Count = 0


class _Names:
    """Ids for all sessions, out of those that each session counts for itself. Remembers one number a kind of head."""

    def __init__(self, *, shared_heads: bool) -> None:
        self._shared_heads = shared_heads
        self._heads: dict[tuple[int, int, int], int] = {}
        self._unused = 0

    def rename(self, session: _Session, prompts: Sequence[list[int]]) -> Iterator[list[int]]:
        """Each prompt's ids under names that no other session has, but for the head that all of its kind share."""
        own = self._take(1 + max((max(prompt, default=0) for prompt in prompts), default=0))
        head = self._head(session, prompts)
        shared = self._heads.setdefault((session.tool_tokens, session.system_tokens, len(head)), self._unused)
        if shared == self._unused:
            self._take(len(head))
        for prompt in prompts:
            common = _common(prompt, head)
            yield [*range(shared, shared + common), *(own + name for name in prompt[common:])]

    def _head(self, session: _Session, prompts: Sequence[list[int]]) -> list[int]:
        if not self._shared_heads or not prompts:
            return []
        return prompts[0][: (session.tool_tokens + session.system_tokens) // session.block_size]

    def _take(self, count: int) -> int:
        first, self._unused = self._unused, self._unused + count
        if self._unused > MAX_ID + 1:
            raise ValueError(f"more than {MAX_ID + 1} block ids in all sessions")
        return first


def read_claude_sessions(path: Path, *, block_tokens: int, shared_heads: bool) -> Iterator[list[Turn]]:
    """Each session's turns, subagents' among them, by time.

    Raises:
        TraceError: the file cannot be read, a line is no session, or its blocks cannot be cut to ``block_tokens``.
    """
    names = _Names(shared_heads=shared_heads)
    for number, session in read_rows(path, _Session):
        try:
            yield list(_turns(session, names, block_tokens))
        except ValueError as error:
            raise TraceError(f"{path}, line {number}: {error}") from None


def _turns(session: _Session, names: _Names, block_tokens: int) -> Iterator[Turn]:
    if not resizes(session.block_size, block_tokens):
        raise ValueError(f"blocks of {session.block_size} tokens do not make blocks of {block_tokens}")
    asked = sorted(_flat(session.requests, 0.0), key=lambda entry: entry[0])
    prompts = [_expanded(request) for _, request in asked]
    before = 0.0
    for (at, request), ids in zip(asked, names.rename(session, prompts), strict=True):
        blocks = resized(ids, source=session.block_size, target=block_tokens)
        yield Turn(
            at - before, blocks[: request.input_tokens // block_tokens], request.input_tokens, request.output_tokens
        )
        before = at


def _flat(requests: Sequence[_Request], since: float) -> Iterator[tuple[float, _Request]]:
    for request in requests:
        if request.kind == SUBAGENT:
            yield from _flat(request.requests, since + request.at)
        else:
            yield since + request.at, request


def _expanded(request: _Request) -> list[int]:
    blocks = sum(count for _, count in request.hash_runs)
    if blocks > MAX_BLOCKS:
        raise ValueError(f"{blocks} blocks in one request, at most {MAX_BLOCKS}")
    return [name for first, count in request.hash_runs for name in range(first, first + count)]


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """How many leading entries are equal."""
    for place, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return place
    return min(len(one), len(other))
