"""Mooncake-format workloads: one JSON object a line, plain or gzip.

A line holds ``timestamp`` (ms), ``input_length`` and ``output_length`` (tokens) and ``hash_ids``, one id for every 512
tokens of input; the last block may be partial and has an id too. Equal ids mean equal tokens, and equal prefixes.
Format: kvcache-ai/Mooncake, FAST25 release.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import msgspec

from router.trace.lines import TraceError, read_lines

__all__ = ["BLOCK_TOKENS", "TraceRow", "read_trace"]

BLOCK_TOKENS = 512
_Count = Annotated[int, msgspec.Meta(ge=0)]


class TraceRow(msgspec.Struct, frozen=True):
    """One request of a trace; ``timestamp`` in milliseconds from the trace's start."""

    timestamp: Annotated[float, msgspec.Meta(ge=0)]
    input_length: Annotated[int, msgspec.Meta(ge=1)]
    output_length: _Count
    hash_ids: list[_Count]

    def __post_init__(self) -> None:
        blocks = -(-self.input_length // BLOCK_TOKENS)
        if len(self.hash_ids) != blocks:
            raise ValueError(f"{self.input_length} input tokens need {blocks} hash ids, got {len(self.hash_ids)}")


def read_trace(path: Path) -> Iterator[TraceRow]:
    """Rows in file order, read as they are asked for; blank lines are passed over.

    Raises:
        TraceError: the file cannot be read, a line is no trace row, or time runs backwards.
    """
    decoder = msgspec.json.Decoder(TraceRow)
    latest = 0.0
    for number, line in read_lines(path):
        try:
            row = decoder.decode(line)
        except msgspec.MsgspecError as error:
            raise TraceError(f"{path}, line {number}: {error}") from None
        if row.timestamp < latest:
            raise TraceError(f"{path}, line {number}: timestamp {row.timestamp:g} is before {latest:g}")
        latest = row.timestamp
        yield row
