"""From a prompt and the lanes that may serve it to a decision with its reasons.

Puts together what the pure parts say: the index and the memory of what was just sent (what a lane holds, or will in a
moment), the books and the engine's own account (what waits there), the learnt speed, how long caches keep things, the
heat of the prefix, the session's last lane, the policy. The clock is handed in.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from functools import partial
from random import Random
from typing import Generic, TypeVar

import msgspec

from router.choice.affinity import Affinity
from router.choice.candidate import Candidate, Circumstances, Lazily, Policy, Selective
from router.choice.decision import Considered, Decision
from router.choice.heat import PrefixHeat
from router.choice.load import BusyShare
from router.choice.residence import Residences
from router.choice.sight import LaneState, Matches, Sight, by_events, by_memory, nearest, prefix_key, unseen
from router.intake.index import BlockIndex
from router.prompt import Prompt

__all__ = ["Chooser", "Considered", "Decision", "LaneState"]

_GPU_ONLY: Mapping[str, int] = {}
L = TypeVar("L", bound=LaneState)


class _Question(msgspec.Struct, Generic[L], frozen=True):
    """Where a prompt should go now. ``home``: where its session was served last."""

    prompt: Prompt | None
    prompt_tokens: int
    lanes: Sequence[L]
    now: float
    home: tuple[str, int] | None


class _Verdict(msgspec.Struct, Generic[L], frozen=True):
    decision: Decision[L]
    prefix: int | None


class Chooser:
    """One router's chooser: a policy, a seeded source of chance, and what is remembered from choice to choice.

    ``index`` is None where what was sent to a lane is all that is believed of it.
    """

    def __init__(
        self, index: BlockIndex | None, policy: Policy, *, seed: int, now: float, affinity: Affinity | None = None
    ) -> None:
        self._index = index
        self._policy = policy
        self._selective = policy if isinstance(policy, Selective) else None  # asked once: a protocol is slow to answer
        self._random = Random(seed)
        self._busy = BusyShare(now=now)
        self._heat = PrefixHeat()
        self._residences = Residences()
        self._affinity = affinity

    def choose(
        self, prompt: Prompt | None, *, prompt_tokens: int, lanes: Sequence[L], now: float, session: str | None = None
    ) -> Decision[L]:
        """Choose among at least one lanes. ``prompt`` is None where its token ids are unknown: nothing matches then.

        ``prompt`` leaves out the last token: an engine always computes it, so a block that it completes is no hit.
        """
        question = _Question(prompt, prompt_tokens, lanes, now, self._home(session, now))
        verdict = self._decide(question, self._policy, self._random)
        self._settle(question, verdict, session)
        return verdict.decision

    def explain(
        self, prompt: Prompt | None, *, prompt_tokens: int, lanes: Sequence[L], now: float, session: str | None = None
    ) -> Decision[L]:
        """What ``choose`` would return now, leaving no trace: the next choice is the same as without it."""
        chance = Random()
        chance.setstate(self._random.getstate())
        question = _Question(prompt, prompt_tokens, lanes, now, self._home(session, now))
        return self._decide(question, copy.copy(self._policy), chance).decision

    def _settle(self, question: _Question[L], verdict: _Verdict[L], session: str | None) -> None:
        """Remember what was decided."""
        chosen, prompt, now = verdict.decision.chosen, question.prompt, question.now
        lane = chosen.lane
        self._busy.add(chosen.uncached_tokens * lane.speed.pace(now), now=now)
        if verdict.prefix is not None:
            self._heat.add(verdict.prefix, now=now)
        if self._index is not None and prompt is not None and chosen.width is not None:
            keys = prompt.keys(width=chosen.width, pairs=self._index.pairs(lane.handle))
            self._residences.of(lane.handle).use(keys, width=chosen.width, holds=partial(self._there, lane), now=now)
        if self._affinity is not None and session is not None:
            self._affinity.settle(session, url=lane.url, dp_rank=lane.dp_rank, now=now)

    def _there(self, lane: LaneState, key: int) -> bool:
        assert self._index is not None, "asked only of what events tell"
        return self._index.holds(lane.handle, key) or key in lane.recent

    def _decide(self, question: _Question[L], policy: Policy, chance: Random) -> _Verdict[L]:
        prompt, tokens, now = question.prompt, question.prompt_tokens, question.now
        everyone = lanes = question.lanes
        matches = self._matches(prompt, lanes)
        if self._selective is not None and len(lanes) > self._selective.at_most:
            lanes = nearest(self._selective, lanes, matches, prompt, prompt_tokens=tokens, now=now, random=chance)
        sights = self._sights(prompt, lanes, matches, now)
        prefix = None if prompt is None else prefix_key(prompt, sights)
        around = Circumstances(
            busy=self._busy.share(lanes=len(everyone), now=now),
            rate=self._busy.rate(lanes=len(everyone), now=now),
            heat=0.0 if prefix is None else self._heat.of(prefix, now=now),
        )
        candidates = Lazily(len(lanes), lambda place: self._candidate(question, lanes[place], sights[place]))
        choice = policy.choose(candidates, around=around, random=chance)
        return _Verdict(Decision(lanes, sights, candidates, choice, prompt_tokens=tokens), prefix)

    def _matches(self, prompt: Prompt | None, lanes: Sequence[LaneState]) -> Matches:
        if prompt is None or self._index is None:
            return {}
        asked = {lane.handle for lane in lanes}
        return {lane: match for lane, match in self._index.holders(prompt).items() if lane in asked}

    def _sights(
        self, prompt: Prompt | None, lanes: Sequence[LaneState], matches: Matches, now: float
    ) -> Sequence[Sight]:
        if prompt is None:
            return unseen(lanes)
        if self._index is None:
            return by_memory(prompt, lanes, now=now)
        return by_events(prompt, lanes, matches, lasts=partial(self._lasts, now=now), now=now)

    def _lasts(self, lane: LaneState, *, now: float) -> float:
        """What waits will bring as many tokens as it has uncached, and a full cache drops as many for them."""
        assert self._index is not None, "asked only of what events tell"
        if math.isinf(self._residences.age(lane.handle, now)):
            return 1.0
        room = self._index.gpu_tokens(lane.handle)
        return max(1.0 - lane.load.queued_tokens / room, 0.0) if room else 1.0

    def _candidate(self, question: _Question[L], lane: L, sight: Sight) -> Candidate:
        now, load, pace = question.now, lane.load, lane.speed.pace(question.now)
        backlog, surplus, tiers = load.backlog(pace=pace, now=now), load.surplus(now), sight.match.tiers
        return Candidate(
            held_tokens=sight.held,
            uncached_tokens=question.prompt_tokens - sight.held,
            tiers=_GPU_ONLY if len(tiers) == ("GPU" in tiers) else tiers,
            waiting_tokens=backlog.waiting,
            running_tokens=backlog.running,
            decoding=load.decoding,
            in_flight=load.in_flight + surplus.decoding,
            foreign_tokens=surplus.tokens,
            foreign_decoding=surplus.decoding,
            cache_used=surplus.cache_used,
            cache_age=self._residences.age(lane.handle, now),
            seconds_per_token=pace,
            away_seconds=self._away(question.home, lane),
        )

    def _home(self, session: str | None, now: float) -> tuple[str, int] | None:
        return None if self._affinity is None or session is None else self._affinity.place(session, now=now)

    def _away(self, home: tuple[str, int] | None, lane: LaneState) -> float:
        if self._affinity is None or home is None or home == (lane.url, lane.dp_rank):
            return 0.0
        return self._affinity.seconds
