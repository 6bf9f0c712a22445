"""Retrieval-augmented requests told by segments (RAGPulse): system prompt, passages, history, search results, question.

The first line says how many tokens each segment has; a row names its segments in order. Tokens are made of a segment's
number and the place in it, so blocks are equal where the same piece of the same segments lies at the same place.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Annotated

import msgspec
from xxhash import xxh32_intdigest

from bench.workloads.blocks import named
from bench.workloads.request import Ask
from bench.workloads.rows import read_rows
from router.trace.lines import TraceError

__all__ = ["read_rag_segments"]

SEGMENT_BITS = 20
"""A token is the segment's number, then its place in so many bits."""

MAX_SEGMENT = 1 << SEGMENT_BITS
_Count = Annotated[int, msgspec.Meta(ge=0)]
_Id = Annotated[int, msgspec.Meta(ge=0, lt=1 << 43)]


class _Header(msgspec.Struct):
    segment_token_length: dict[_Id, Annotated[int, msgspec.Meta(ge=0, le=MAX_SEGMENT)]]


class _Row(msgspec.Struct):
    """``timestamp`` in seconds, as a text; parts of the prompt in order, each with the numbers of its segments."""

    timestamp: str
    output_length: _Count
    hash_ids: dict[str, list[_Id]]
    session_id: str = ""


def read_rag_segments(path: Path, *, block_tokens: int) -> Iterator[Ask]:
    """Rows by their times. The file has them in another order, so all of them are read before the first is given.

    Raises:
        TraceError: the file cannot be read, or a line is not of this format.
    """
    yield from sorted(_in_file_order(path, block_tokens), key=lambda ask: ask.at)


def _in_file_order(path: Path, block_tokens: int) -> Iterator[Ask]:
    lengths = next(read_rows(path, _Header))[1].segment_token_length
    for number, row in read_rows(path, _Row, skip=1):
        try:
            at, tokens = _seconds(row.timestamp), _tokens(row, lengths)
        except ValueError as error:
            raise TraceError(f"{path}, line {number}: {error}") from None
        blocks = named(tokens.tobytes(), block_bytes=block_tokens * tokens.itemsize)
        yield Ask(
            at,
            blocks,
            len(tokens),
            row.output_length,
            xxh32_intdigest(row.session_id.encode(errors="surrogatepass")),
        )


def _seconds(timestamp: str) -> float:
    try:
        seconds = float(timestamp)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise ValueError(f"timestamp {timestamp!r:.40} is no time in seconds")
    return seconds


def _tokens(row: _Row, lengths: Mapping[int, int]) -> array[int]:
    tokens = array("Q")
    for segment in chain.from_iterable(row.hash_ids.values()):
        length = lengths.get(segment)
        if length is None:
            raise ValueError(f"segment {segment} has no length in the first line")
        first = segment << SEGMENT_BITS
        tokens.extend(range(first, first + length))
    return tokens
