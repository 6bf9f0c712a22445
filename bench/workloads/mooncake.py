"""Mooncake-format traces as requests: 512 tokens an id, at the recorded times."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from bench.workloads.blocks import resized
from bench.workloads.request import Ask
from router.trace.mooncake import BLOCK_TOKENS, read_trace

__all__ = ["BLOCK_TOKENS", "read_mooncake"]


def read_mooncake(path: Path, *, block_tokens: int = BLOCK_TOKENS) -> Iterator[Ask]:
    """Rows in file order. ``block_tokens`` divides 512 or is a multiple of it.

    Raises:
        TraceError: as for ``read_trace``.
    """
    for row in read_trace(path):
        ids = resized(row.hash_ids, source=BLOCK_TOKENS, target=block_tokens)
        full = row.input_length // block_tokens
        yield Ask(row.timestamp / 1000, ids[:full], row.input_length, row.output_length)
