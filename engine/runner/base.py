"""What the scheduler asks of a forward pass, whatever carries it out: torch or a clock."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from engine.request import SamplingParams

__all__ = ["Chunk", "Runner", "StateMoves"]


class StateMoves(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """How a chunk changes its sequence's states, in slots of the state pools (hybrid models only).

    ``source`` holds the states behind the context; None: there is no context, all states are zero. ``saves`` are pairs
    ``(count, slot)`` in order: the states behind the first ``count`` tokens of the chunk go to ``slot``, the last
    pair's count being the whole chunk. Within a step all sources are read before anything is saved: a slot may be one
    chunk's source and another's save.
    """

    source: int | None
    saves: Sequence[tuple[int, int]]


class Chunk(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """The tokens of one request to compute in this step: a prefill chunk, or one decode token.

    ``tokens`` stand at positions ``[context_length, context_length + len(tokens))``; the context is in the cache
    already, found there or computed by earlier steps. ``block_table`` holds the logical block ids that cover both, in
    order, the same ids on every rank. ``sampling`` is set where the chunk ends the known tokens, so that a next token
    is wanted. ``states`` is set where the model keeps states.
    """

    request_id: int
    tokens: Sequence[int]
    context_length: int
    block_table: Sequence[int]
    sampling: SamplingParams | None
    states: StateMoves | None = None


class Runner(Protocol):
    """Computes chunks. One thread calls it, one step at a time."""

    def run(self, chunks: Sequence[Chunk]) -> list[int | None]:
        """Compute all chunks in one step; the next token of each chunk that samples, ``None`` for the others."""
        ...

    def close(self) -> None:
        """Release ranks and memory; no further ``run``."""
        ...
