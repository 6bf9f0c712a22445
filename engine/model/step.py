"""One forward step as tensors: the part of it that is the same on every rank.

The tokens of all chunks are laid in one row of length ``T``: decode tokens first, grouped so that the caches of a group
are of similar length, then the longer chunks, cut into tiles. Each group and each tile is a *part*, which attention
computes at once. This module knows nothing of ranks, weights or caches.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, groupby

import torch
from torch import Tensor

from contract.geometry import Geometry
from engine.model.state_plan import PlacedMoves, StatePlan, plan_states
from engine.runner.base import Chunk

__all__ = ["DecodePart", "ExtendPart", "Step", "plan_step"]

_TILE = 256
"""Queries of one sequence computed at once: bounds the memory of their scores, and skips keys that none of them sees.
"""


@dataclass(frozen=True)
class DecodePart:
    """Rows ``[start, stop)``: one token each of as many sequences. ``tables`` is ``[stop - start, columns]``."""

    start: int
    stop: int
    tables: Tensor


@dataclass(frozen=True)
class ExtendPart:
    """Rows ``[start, stop)``: neighbouring tokens of one sequence, the last of which is its ``length``-th token."""

    start: int
    stop: int
    table: Tensor  # [columns]
    length: int


@dataclass(frozen=True)
class Step:
    """``T`` new tokens of any number of sequences. All tensors are int64."""

    tokens: Tensor  # [T]
    positions: Tensor  # [T]
    blocks: Tensor  # [T], ids of the logical blocks that the tokens go to
    parts: tuple[DecodePart | ExtendPart, ...]  # in order of their rows, covering all
    sampled: Tensor  # [S], the rows that a next token is wanted of, in the order of the chunks
    states: StatePlan | None = None  # where the model keeps states


@dataclass(frozen=True)
class _Placed:
    """A chunk, the row of its first token, and the block ids that it and its context fill."""

    chunk: Chunk
    start: int
    table: Sequence[int]

    @property
    def stop(self) -> int:
        return self.start + len(self.chunk.tokens)

    @property
    def positions(self) -> range:
        return range(self.chunk.context_length, self.chunk.context_length + len(self.chunk.tokens))


def plan_step(chunks: Sequence[Chunk], geometry: Geometry, *, device: torch.device) -> Step:
    """Lay out ``chunks``, of which each has at least one token; the order of rows is not the order of chunks."""
    order = sorted(range(len(chunks)), key=lambda index: _part_class(chunks[index]))
    placed = list(_place((chunks[index] for index in order), geometry))
    by_index = dict(zip(order, placed, strict=True))
    sampled = [by_index[index].stop - 1 for index in range(len(chunks)) if chunks[index].sampling is not None]
    positions = _tensor(chain.from_iterable(one.positions for one in placed), device)
    return Step(
        tokens=_tensor(chain.from_iterable(one.chunk.tokens for one in placed), device),
        positions=positions,
        blocks=_blocks(placed, columns=positions // geometry.block_width),
        parts=tuple(_parts(placed, device)),
        sampled=torch.tensor(sampled, dtype=torch.int64, device=device),
        states=_states(placed, device),
    )


def _states(placed: Sequence[_Placed], device: torch.device) -> StatePlan | None:
    moves = [PlacedMoves(one.start, one.stop, one.chunk.states) for one in placed if one.chunk.states is not None]
    assert len(moves) in (0, len(placed)), "some chunks move states and some do not"
    return plan_states(moves, device=device) if moves else None


def _part_class(chunk: Chunk) -> tuple[bool, int]:
    """Chunks of one class lie next to each other. Padding a decode group to its longest costs at most a factor of 4."""
    if len(chunk.tokens) > 1:
        return True, 0
    return False, len(chunk.block_table).bit_length() // 2


def _place(chunks: Iterable[Chunk], geometry: Geometry) -> Iterator[_Placed]:
    start = 0
    for chunk in chunks:
        assert chunk.tokens, f"request {chunk.request_id}: a chunk has no tokens"
        needed = geometry.blocks_for(chunk.context_length + len(chunk.tokens))
        assert needed <= len(chunk.block_table), (
            f"request {chunk.request_id}: {needed} blocks needed, its table has {len(chunk.block_table)}"
        )
        yield _Placed(chunk, start, chunk.block_table[:needed])
        start += len(chunk.tokens)


def _blocks(placed: Sequence[_Placed], *, columns: Tensor) -> Tensor:
    """The block id of every row, given the column of its sequence's table."""
    tables = _tensor(chain.from_iterable(one.table for one in placed), columns.device)
    row_counts = torch.tensor([len(one.chunk.tokens) for one in placed], device=columns.device)
    table_sizes = torch.tensor([len(one.table) for one in placed], device=columns.device)
    table_starts = table_sizes.cumsum(0) - table_sizes
    return tables[table_starts.repeat_interleave(row_counts) + columns]


def _parts(placed: Sequence[_Placed], device: torch.device) -> Iterator[DecodePart | ExtendPart]:
    for (is_extend, _), members in groupby(placed, key=lambda one: _part_class(one.chunk)):
        if is_extend:
            for one in members:
                yield from _tiles(one, device)
        else:
            yield _decode_part(list(members), device)


def _tiles(one: _Placed, device: torch.device) -> Iterator[ExtendPart]:
    table = _tensor(one.table, device)
    for start in range(one.start, one.stop, _TILE):
        stop = min(start + _TILE, one.stop)
        yield ExtendPart(start, stop, table, length=one.chunk.context_length + stop - one.start)


def _decode_part(members: Sequence[_Placed], device: torch.device) -> DecodePart:
    columns = max(len(one.table) for one in members)
    padded = (chain(one.table, [0] * (columns - len(one.table))) for one in members)
    tables = _tensor(chain.from_iterable(padded), device).view(len(members), columns)
    return DecodePart(members[0].start, members[-1].stop, tables)


def _tensor(ids: Iterable[int], device: torch.device) -> Tensor:
    """By way of an array: three times as fast as torch's own reading of Python numbers."""
    return torch.frombuffer(array("q", ids), dtype=torch.int64).to(device)
