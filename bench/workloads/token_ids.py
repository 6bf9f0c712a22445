"""Recorded token ids as requests (LLMServingSim's traces): real ids of one tokenizer, at the recorded times."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import msgspec

from bench.workloads.blocks import MAX_ID, named
from bench.workloads.request import Ask
from bench.workloads.rows import read_rows
from router.trace.lines import TraceError

__all__ = ["read_token_ids"]

_Count = Annotated[int, msgspec.Meta(ge=0)]


class _Row(msgspec.Struct):
    arrival_time_ns: _Count
    output_toks: _Count
    input_tok_ids: list[Annotated[int, msgspec.Meta(ge=0, le=MAX_ID)]]


def read_token_ids(path: Path, *, block_tokens: int) -> Iterator[Ask]:
    """Rows in file order.

    Raises:
        TraceError: the file cannot be read, a line is no such row, or time runs backwards.
    """
    latest = 0
    for number, row in read_rows(path, _Row):
        if row.arrival_time_ns < latest:
            raise TraceError(f"{path}, line {number}: arrival_time_ns {row.arrival_time_ns} is before {latest}")
        latest = row.arrival_time_ns
        tokens = array("I", row.input_tok_ids)
        blocks = named(tokens.tobytes(), block_bytes=block_tokens * tokens.itemsize)
        yield Ask(latest / 1e9, blocks, len(tokens), row.output_toks)
