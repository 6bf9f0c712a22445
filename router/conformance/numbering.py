"""Holds the numbers of a life's batches to the rules: no number is left out, unless a replay brings it."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

from router.conformance.lives import Life, replayed_frames
from router.conformance.observation import Asked, Observation
from router.conformance.rules import Ledger, Rule

__all__ = ["judge_numbering"]

_MOST_SEARCHED = 100_000
"""How much of one hole is looked through; a number can jump by 2**62."""


def judge_numbering(lives: Sequence[Life], seen: Observation, ledger: Ledger) -> None:
    """Judge the holes between live batches of one connection, and between batches of one replay.

    Holes of an earlier life are passed over where there is a replay endpoint: it could not be asked in time.
    """
    judged = lives[-1:] if seen.sessions else lives
    for life in judged:
        for _, numbers in itertools.groupby(life.live, key=lambda seq: life.connections[seq]):
            _judge_holes(life, numbers, ledger, where="live")
    everything = seen.session(Asked.ALL)
    if everything is not None:
        _judge_holes(lives[-1], [frame.seq for frame in replayed_frames(everything)], ledger, where="replayed")


def _judge_holes(life: Life, numbers: Iterable[int], ledger: Ledger, *, where: str) -> None:
    for before, after in itertools.pairwise(numbers):
        hole = range(before + 1, min(after, before + 1 + _MOST_SEARCHED))
        missing = next((seq for seq in hole if not life.knows(seq)), None)
        if missing is not None:
            ledger.broken(
                Rule.NUMBERING, f"batch {after} came {where} after batch {before}, and batch {missing} never came"
            )
