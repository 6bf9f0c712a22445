"""From a prompt and the lanes that may serve it to a decision with its reasons.

Puts together what the pure parts say: the index (what a lane holds), the memory of what was just sent (what it will
hold in a moment), the books (what waits there), the learnt speed, the policy. The clock is handed in.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from random import Random
from typing import Generic, Protocol, TypeVar

import msgspec

from router.choice.load import BusyShare, LaneLoad
from router.choice.policy import Candidate, Choice, Policy
from router.choice.recent import RecentPrompts
from router.choice.speed import ReplicaSpeed
from router.intake.index import BlockIndex, LaneHandle, Match
from router.prompt import Prompt

__all__ = ["Chooser", "Considered", "Decision", "LaneState"]

NO_MATCH = Match(tokens=0, tiers={})


class LaneState(Protocol):
    """What a choice needs of a lane."""

    url: str
    dp_rank: int
    handle: LaneHandle
    load: LaneLoad
    recent: RecentPrompts
    speed: ReplicaSpeed

    @property
    def width(self) -> int | None:
        """Block width in tokens."""
        ...


L = TypeVar("L", bound=LaneState)


class Considered(msgspec.Struct, Generic[L], frozen=True, kw_only=True):
    """One lane as it was judged. ``matched_tokens`` is what the index holds of the prompt there: the predicted hit."""

    lane: L
    width: int | None
    matched_tokens: int
    tiers: Mapping[str, int]
    uncached_tokens: int
    cost: float
    terms: Mapping[str, float]


class Decision(msgspec.Struct, Generic[L], frozen=True):
    """``chosen`` is one of ``considered``."""

    chosen: Considered[L]
    considered: Sequence[Considered[L]]
    prompt_tokens: int


class Chooser:
    """One router's chooser: a policy, a seeded source of chance, and the fleet's busy share."""

    def __init__(self, index: BlockIndex, policy: Policy, *, seed: int, now: float) -> None:
        self._index = index
        self._policy = policy
        self._random = Random(seed)
        self._busy = BusyShare(now=now)

    def choose(self, prompt: Prompt | None, *, prompt_tokens: int, lanes: Sequence[L], now: float) -> Decision[L]:
        """Choose among at least one lanes. ``prompt`` is None where its token ids are unknown: nothing matches then.

        ``prompt`` leaves out the last token: an engine always computes it, so a block that it completes is no hit.
        """
        decision = self._decide(self._policy, self._random, prompt, prompt_tokens, lanes, now)
        work = decision.chosen.uncached_tokens * decision.chosen.lane.speed.line(now).pace
        self._busy.add(work, now=now)
        return decision

    def explain(self, prompt: Prompt | None, *, prompt_tokens: int, lanes: Sequence[L], now: float) -> Decision[L]:
        """What ``choose`` would return now, leaving no trace: the next choice is the same as without it."""
        chance = Random()
        chance.setstate(self._random.getstate())
        return self._decide(copy.copy(self._policy), chance, prompt, prompt_tokens, lanes, now)

    def _decide(
        self,
        policy: Policy,
        chance: Random,
        prompt: Prompt | None,
        prompt_tokens: int,
        lanes: Sequence[L],
        now: float,
    ) -> Decision[L]:
        matches = {} if prompt is None else self._index.match(prompt, [lane.handle for lane in lanes])
        candidates = [
            _candidate(lane, prompt, matches.get(lane.handle, NO_MATCH), prompt_tokens, now) for lane in lanes
        ]
        choice = policy.choose(candidates, busy=self._busy.share(lanes=len(lanes), now=now), random=chance)
        considered = _considered(lanes, candidates, choice, matches)
        return Decision(considered[choice.index], considered, prompt_tokens)


def _candidate(lane: LaneState, prompt: Prompt | None, match: Match, prompt_tokens: int, now: float) -> Candidate:
    held = match.tokens
    width = lane.width
    if prompt is not None and width is not None and len(lane.recent):
        held = max(held, lane.recent.match(prompt.keys(width=width), width=width, now=now))
    load = lane.load
    return Candidate(
        matched_tokens=held,
        uncached_tokens=prompt_tokens - held,
        queued_tokens=load.queued_tokens,
        decoding=load.decoding,
        in_flight=load.in_flight,
        seconds_per_token=lane.speed.line(now).pace,
    )


def _considered(
    lanes: Sequence[L],
    candidates: Sequence[Candidate],
    choice: Choice,
    matches: Mapping[LaneHandle, Match],
) -> list[Considered[L]]:
    found = []
    for lane, candidate, score in zip(lanes, candidates, choice.scores, strict=True):
        match = matches.get(lane.handle, NO_MATCH)
        found.append(
            Considered(
                lane=lane,
                width=lane.width,
                matched_tokens=match.tokens,
                tiers=match.tiers,
                uncached_tokens=candidate.uncached_tokens,
                cost=score.cost,
                terms=score.terms,
            )
        )
    return found
