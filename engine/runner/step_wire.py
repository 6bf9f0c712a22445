"""A step's chunks as bytes, for ranks in other processes: what they cannot work out for themselves, and no more.

A rank plans the step from the chunks, as the engine itself does for ranks in its own process. Block tables are most of
a step and hardly change from one to the next, so each side remembers those of the last step, and only block ids that
are new since then travel. A request that was not in the last step is sent whole, so nothing has to be forgotten in
agreement, and what is remembered is bounded by one step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from engine.runner.base import Chunk

__all__ = ["REPORT", "StepReader", "StepWriter"]

REPORT = b""
"""Sent in place of a step: the rank shall answer with its ready message."""


class _Message(msgspec.Struct, frozen=True, array_like=True):
    """``chunks`` with the new ends of their block tables; ``kept`` are the ids before those, of the last step."""

    chunks: list[Chunk]
    kept: list[int]


def _plain(value: Any) -> list[int]:
    """Token ids may be packed arrays."""
    return list(value)


class StepWriter:
    """The engine's side."""

    def __init__(self) -> None:
        self._tables: dict[int, list[int]] = {}
        self._encoder = msgspec.msgpack.Encoder(enc_hook=_plain)

    def write(self, chunks: Sequence[Chunk]) -> bytes:
        """One step; to be read by `StepReader.read` in the order of writing."""
        kept = [self._kept(chunk) for chunk in chunks]
        ends = [
            msgspec.structs.replace(chunk, block_table=chunk.block_table[known:])
            for chunk, known in zip(chunks, kept, strict=True)
        ]
        self._tables = dict(_extended(self._tables, chunk, known) for chunk, known in zip(ends, kept, strict=True))
        return self._encoder.encode(_Message(ends, kept))

    def _kept(self, chunk: Chunk) -> int:
        """How much of its table the last step had: all of it, or it is sent anew."""
        last = self._tables.get(chunk.request_id, [])
        return len(last) if list(chunk.block_table[: len(last)]) == last else 0


class StepReader:
    """A rank's side."""

    def __init__(self) -> None:
        self._tables: dict[int, list[int]] = {}
        self._decoder = msgspec.msgpack.Decoder(_Message)

    def read(self, payload: bytes) -> list[Chunk]:
        """The chunks that were written, in their order.

        Raises:
            msgspec.MsgspecError: the bytes are no step.
        """
        message = self._decoder.decode(payload)
        self._tables = dict(
            _extended(self._tables, chunk, known) for chunk, known in zip(message.chunks, message.kept, strict=True)
        )
        return [msgspec.structs.replace(chunk, block_table=self._tables[chunk.request_id]) for chunk in message.chunks]


def _extended(tables: dict[int, list[int]], chunk: Chunk, kept: int) -> tuple[int, list[int]]:
    """A request and its table, which continues the last one in place where any of that was kept."""
    if not kept:
        return chunk.request_id, list(chunk.block_table)
    table = tables[chunk.request_id]
    assert len(table) == kept, f"request {chunk.request_id}: {kept} block ids are kept of {len(table)}"
    table.extend(chunk.block_table)
    return chunk.request_id, table
