"""Where the states of a step's sequences come from and go to, as tensors: the part of a step that linear layers read.

Tokens are the rows that the step lays out: single ones first, one a sequence, then runs. Knows nothing of weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.cache.state_pool import pool_row
from engine.runner.base import StateMoves

__all__ = ["PlacedMoves", "StatePlan", "StateRun", "plan_states"]


@dataclass(frozen=True)
class PlacedMoves:
    """A chunk's moves, and the rows ``[start, stop)`` that its tokens are."""

    start: int
    stop: int
    moves: StateMoves


@dataclass(frozen=True)
class StateRun:
    """Rows ``[start, stop)``, neighbouring tokens of one sequence, cut where states are saved.

    ``source`` says which of the plan's sources it starts from. ``cuts`` are row numbers in order, the last is ``stop``;
    a cut may be there twice. ``targets`` are the pool rows that the states there go to.
    """

    start: int
    stop: int
    source: int
    cuts: tuple[int, ...]
    targets: Tensor  # [cuts]


@dataclass(frozen=True)
class StatePlan:
    """The first ``singles`` sources belong to rows ``[0, singles)``, the others to the runs, in their order."""

    sources: Tensor  # [sequences], pool rows
    singles: int
    saved_singles: Tensor  # [saves], rows whose states are saved; a row may be there twice
    targets: Tensor  # [saves], pool rows that they go to
    runs: tuple[StateRun, ...]


def plan_states(placed: Sequence[PlacedMoves], *, device: torch.device) -> StatePlan:
    """The plan of chunks in the order of their rows."""
    singles = [one for one in placed if one.stop - one.start == 1]
    assert [one.start for one in singles] == list(range(len(singles))), "single tokens come first"
    saves = [(one.start, slot) for one in singles for _, slot in one.moves.saves]
    return StatePlan(
        sources=_tensor([pool_row(one.moves.source) for one in placed], device),
        singles=len(singles),
        saved_singles=_tensor([row for row, _ in saves], device),
        targets=_tensor([pool_row(slot) for _, slot in saves], device),
        runs=tuple(_run(one, source, device) for source, one in enumerate(placed) if source >= len(singles)),
    )


def _run(one: PlacedMoves, source: int, device: torch.device) -> StateRun:
    return StateRun(
        start=one.start,
        stop=one.stop,
        source=source,
        cuts=tuple(one.start + count for count, _ in one.moves.saves),
        targets=_tensor([pool_row(slot) for _, slot in one.moves.saves], device),
    )


def _tensor(numbers: Sequence[int], device: torch.device) -> Tensor:
    return torch.tensor(numbers, dtype=torch.int64, device=device)
