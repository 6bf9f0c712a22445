"""Recorded agents' real texts as requests (LMCache's agent traces), and chats without times (LMBenchmark's).

An agent's inputs come delta coded: ``input = previous_input[:keep] + append``, in file order. Without a tokenizer four
bytes of UTF-8 are a token, about what English text has; a shared prefix is then found to within a block all the same.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Annotated

import msgspec

from bench.workloads.blocks import named
from bench.workloads.rows import read_rows
from bench.workloads.tempo import Turn

__all__ = ["AGENT_GAP", "CHAT_GAP", "Cut", "by_bytes", "by_tokenizer", "read_agent_texts", "read_chat_texts"]

AGENT_GAP = 20.0
"""Seconds from one agent's start to the next, on average."""

CHAT_GAP = 1.0
"""The same, of chats that come without times."""

BYTES_PER_TOKEN = 4
_Count = Annotated[int, msgspec.Meta(ge=0)]


class Prompt(msgspec.Struct, frozen=True):
    """A text's length in tokens and the ids of its full blocks."""

    tokens: int
    blocks: tuple[int, ...]


Cut = Callable[[str], Prompt]


def by_bytes(*, block_tokens: int) -> Cut:
    """Cuts a text into blocks without a tokenizer."""

    def cut(text: str) -> Prompt:
        content = text.encode(errors="surrogatepass")
        return Prompt(len(content) // BYTES_PER_TOKEN, named(content, block_bytes=BYTES_PER_TOKEN * block_tokens))

    return cut


def by_tokenizer(encode: Callable[[str], Sequence[int]], *, block_tokens: int) -> Cut:
    """Cuts a text into blocks of a tokenizer's ids."""

    def cut(text: str) -> Prompt:
        ids = array("I", encode(text))
        return Prompt(len(ids), named(ids.tobytes(), block_bytes=block_tokens * ids.itemsize))

    return cut


class _Agent(msgspec.Struct):
    session_id: str
    timestamp_us: _Count
    keep: _Count
    append: str
    output: str = ""


class _Chat(msgspec.Struct):
    input: str
    output_length: _Count


def read_agent_texts(paths: Sequence[Path], cut: Cut) -> Iterator[list[Turn]]:
    """Each session's turns, file after file; neighbouring rows of one id are a session.

    Raises:
        TraceError: a file cannot be read, or a line is of another format.
    """
    for path in paths:
        rows = (row for _, row in read_rows(path, _Agent))
        text = ""
        for _, session in groupby(rows, key=lambda row: row.session_id):
            turns: list[Turn] = []
            before: int | None = None
            for row in session:
                text = text[: row.keep] + row.append
                pause = 0 if before is None else max(row.timestamp_us - before, 0)
                turns.append(_turn(cut(text), cut(row.output).tokens, pause=pause / 1e6))
                before = row.timestamp_us
            yield turns


def read_chat_texts(path: Path, cut: Cut) -> Iterator[list[Turn]]:
    """Each row as a session of one turn.

    Raises:
        TraceError: the file cannot be read, or a line is of another format.
    """
    for _, row in read_rows(path, _Chat):
        yield [_turn(cut(row.input), row.output_length, pause=0.0)]


def _turn(prompt: Prompt, output_tokens: int, *, pause: float) -> Turn:
    return Turn(pause, prompt.blocks, prompt.tokens, output_tokens)
