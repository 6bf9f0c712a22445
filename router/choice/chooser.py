"""From a prompt and the lanes that may serve it to a decision with its reasons.

Puts together what the pure parts say: the index (what a lane holds), the memory of what was just sent (what it will
hold in a moment), the books and the engine's own account (what waits there), the learnt speed, the heat of the prefix,
the session's last lane, the policy. The clock is handed in.

Without an index (``approx``) the memory is all there is: what was sent to a lane counts as held and as predicted.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from random import Random
from typing import Generic, Protocol, TypeVar

import msgspec

from router.choice.affinity import Affinity
from router.choice.candidate import Candidate, Choice, Circumstances, Policy
from router.choice.heat import PrefixHeat
from router.choice.load import BusyShare, LaneLoad
from router.choice.memory import MARK_TOKENS, Memory, mark_step
from router.choice.speed import ReplicaSpeed
from router.intake.index import BlockIndex, LaneHandle, Match
from router.prompt import Prompt

__all__ = ["Chooser", "Considered", "Decision", "LaneState"]

NO_MATCH = Match(tokens=0, tiers={})
_GPU_ONLY: Mapping[str, int] = {}


class LaneState(Protocol):
    """What a choice needs of a lane."""

    url: str
    dp_rank: int
    handle: LaneHandle
    load: LaneLoad
    recent: Memory
    speed: ReplicaSpeed

    @property
    def width(self) -> int | None:
        """Block width in tokens."""
        ...


L = TypeVar("L", bound=LaneState)


class Considered(msgspec.Struct, Generic[L], frozen=True, kw_only=True):
    """One lane as it was judged.

    ``matched_tokens`` of the prompt are held there: the predicted hit. ``pending_tokens`` more are on their way, being
    part of a prompt that was just sent. ``uncached_tokens`` are the rest.
    """

    lane: L
    width: int | None
    matched_tokens: int
    pending_tokens: int
    tiers: Mapping[str, int]
    uncached_tokens: int
    cost: float
    terms: Mapping[str, float]


class Decision(msgspec.Struct, Generic[L], frozen=True):
    """``chosen`` is one of ``considered``."""

    chosen: Considered[L]
    considered: Sequence[Considered[L]]
    prompt_tokens: int


class _View(msgspec.Struct, frozen=True):
    """What is known of a prompt on one lane."""

    width: int | None
    match: Match
    held: int


class _Verdict(msgspec.Struct, Generic[L], frozen=True):
    decision: Decision[L]
    hot_key: int | None


class Chooser:
    """One router's chooser: a policy, a seeded source of chance, and what is remembered from choice to choice.

    ``index`` is None where what was sent to a lane is all that is believed of it.
    """

    def __init__(
        self, index: BlockIndex | None, policy: Policy, *, seed: int, now: float, affinity: Affinity | None = None
    ) -> None:
        self._index = index
        self._policy = policy
        self._random = Random(seed)
        self._busy = BusyShare(now=now)
        self._heat = PrefixHeat()
        self._affinity = affinity

    def choose(
        self, prompt: Prompt | None, *, prompt_tokens: int, lanes: Sequence[L], now: float, session: str | None = None
    ) -> Decision[L]:
        """Choose among at least one lanes. ``prompt`` is None where its token ids are unknown: nothing matches then.

        ``prompt`` leaves out the last token: an engine always computes it, so a block that it completes is no hit.
        """
        verdict = self._decide(self._policy, self._random, prompt, prompt_tokens, lanes, now, session)
        chosen = verdict.decision.chosen
        self._busy.add(chosen.uncached_tokens * chosen.lane.speed.pace(now), now=now)
        if verdict.hot_key is not None:
            self._heat.add(verdict.hot_key, now=now)
        if self._affinity is not None and session is not None:
            self._affinity.settle(session, url=chosen.lane.url, dp_rank=chosen.lane.dp_rank, now=now)
        return verdict.decision

    def explain(
        self, prompt: Prompt | None, *, prompt_tokens: int, lanes: Sequence[L], now: float, session: str | None = None
    ) -> Decision[L]:
        """What ``choose`` would return now, leaving no trace: the next choice is the same as without it."""
        chance = Random()
        chance.setstate(self._random.getstate())
        return self._decide(copy.copy(self._policy), chance, prompt, prompt_tokens, lanes, now, session).decision

    def _decide(
        self,
        policy: Policy,
        chance: Random,
        prompt: Prompt | None,
        prompt_tokens: int,
        lanes: Sequence[L],
        now: float,
        session: str | None,
    ) -> _Verdict[L]:
        views = self._views(prompt, lanes, now)
        hot_key = None if prompt is None else _hot_key(prompt, views)
        around = Circumstances(
            busy=self._busy.share(lanes=len(lanes), now=now),
            heat=0.0 if hot_key is None else self._heat.of(hot_key, now=now),
        )
        home = None if self._affinity is None or session is None else self._affinity.place(session, now=now)
        candidates = [
            _candidate(lane, view, prompt_tokens, now, away_seconds=self._away(home, lane))
            for lane, view in zip(lanes, views, strict=True)
        ]
        choice = policy.choose(candidates, around=around, random=chance)
        considered = _considered(lanes, views, candidates, choice)
        return _Verdict(Decision(considered[choice.index], considered, prompt_tokens), hot_key)

    def _views(self, prompt: Prompt | None, lanes: Sequence[L], now: float) -> list[_View]:
        if prompt is None:
            return [_View(lane.width, NO_MATCH, 0) for lane in lanes]
        if self._index is None:
            return [_routed_view(lane, prompt, now) for lane in lanes]
        matches = self._index.match(prompt, [lane.handle for lane in lanes])
        return [_view(lane, prompt, matches.get(lane.handle, NO_MATCH), now) for lane in lanes]

    def _away(self, home: tuple[str, int] | None, lane: LaneState) -> float:
        if self._affinity is None or home is None or home == (lane.url, lane.dp_rank):
            return 0.0
        return self._affinity.seconds


def _view(lane: LaneState, prompt: Prompt, match: Match, now: float) -> _View:
    width, held = lane.width, match.tokens
    if width is not None and len(lane.recent):
        held = max(held, lane.recent.match(prompt.keys(width=width), width=width, now=now, known=held))
    return _View(width, match, held)


def _routed_view(lane: LaneState, prompt: Prompt, now: float) -> _View:
    """A lane's width may be unknown without events; any will do then, since nobody else's keys are compared."""
    width = lane.width or MARK_TOKENS
    held = lane.recent.match(prompt.keys(width=width), width=width, now=now)
    return _View(width, Match(held, {"GPU": held} if held else {}), held)


def _hot_key(prompt: Prompt, views: Sequence[_View]) -> int | None:
    """The key at the last mark that the deepest match reaches: what names the prefix whatever follows it."""
    deepest = max(views, key=lambda view: view.held)
    if deepest.width is None:
        return None
    step = mark_step(deepest.width)
    blocks = deepest.held // deepest.width // step * step
    return prompt.keys(width=deepest.width)[blocks - 1] if blocks else None


def _candidate(lane: LaneState, view: _View, prompt_tokens: int, now: float, *, away_seconds: float) -> Candidate:
    load, pace = lane.load, lane.speed.pace(now)
    backlog, surplus = load.backlog(pace=pace, now=now), load.surplus(now)
    return Candidate(
        held_tokens=view.held,
        uncached_tokens=prompt_tokens - view.held,
        tiers=_GPU_ONLY if len(view.match.tiers) == ("GPU" in view.match.tiers) else view.match.tiers,
        waiting_tokens=backlog.waiting,
        running_tokens=backlog.running,
        decoding=load.decoding,
        in_flight=load.in_flight + surplus.decoding,
        foreign_tokens=surplus.tokens,
        foreign_decoding=surplus.decoding,
        cache_used=surplus.cache_used,
        seconds_per_token=pace,
        away_seconds=away_seconds,
    )


def _considered(
    lanes: Sequence[L], views: Sequence[_View], candidates: Sequence[Candidate], choice: Choice
) -> list[Considered[L]]:
    return [
        Considered(
            lane=lane,
            width=view.width,
            matched_tokens=view.match.tokens,
            pending_tokens=view.held - view.match.tokens,
            tiers=view.match.tiers,
            uncached_tokens=candidate.uncached_tokens,
            cost=score.cost,
            terms=score.terms,
        )
        for lane, view, candidate, score in zip(lanes, views, candidates, choice.scores, strict=True)
    ]
