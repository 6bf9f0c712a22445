"""A decision with its reasons: the lanes that came into question, and what each was thought to cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Generic, TypeVar

import msgspec

from router.choice.candidate import Candidate, Choice
from router.choice.sight import LaneState, Sight

__all__ = ["Considered", "Decision"]

L = TypeVar("L", bound=LaneState)


class Considered(msgspec.Struct, Generic[L], frozen=True, kw_only=True):
    """One lane as it was judged.

    ``matched_tokens`` of the prompt are held there: the predicted hit. ``pending_tokens`` more are on their way, being
    part of a prompt that was just sent. ``uncached_tokens`` are the rest, and what is likely to be pushed out before.
    """

    lane: L
    width: int | None
    matched_tokens: int
    pending_tokens: int
    tiers: Mapping[str, int]
    uncached_tokens: int
    cost: float
    terms: Mapping[str, float]


class Decision(Generic[L]):
    """``chosen`` is one of ``considered``: all lanes, or where these are many the few that come nearest.

    Reasons are written out when somebody asks: a decision is kept for every request, and looked at for few.
    """

    __slots__ = ("_candidates", "_choice", "_lanes", "_sights", "chosen", "prompt_tokens")

    def __init__(
        self,
        lanes: Sequence[L],
        sights: Sequence[Sight],
        candidates: Sequence[Candidate],
        choice: Choice,
        *,
        prompt_tokens: int,
    ) -> None:
        self._lanes = lanes
        self._sights = sights
        self._candidates = candidates
        self._choice = choice
        self.prompt_tokens = prompt_tokens
        self.chosen = self._judged(choice.index)

    @property
    def considered(self) -> Sequence[Considered[L]]:
        """Every lane that came into question."""
        return [self._judged(place) for place in range(len(self._lanes))]

    def _judged(self, place: int) -> Considered[L]:
        sight, score = self._sights[place], self._choice.scores[place]
        return Considered(
            lane=self._lanes[place],
            width=sight.width,
            matched_tokens=sight.match.tokens,
            pending_tokens=max(sight.held - sight.match.tokens, 0),
            tiers=sight.match.tiers,
            uncached_tokens=self._candidates[place].uncached_tokens,
            cost=score.cost,
            terms=score.terms,
        )
