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
from router.choice.cut import Cut
from router.choice.decision import Considered, Decision
from router.choice.heat import PrefixHeat
from router.choice.load import BusyShare
from router.choice.nearest import Nearest
from router.choice.pioneers import Pioneers
from router.choice.pool import Pool
from router.choice.residence import Residences
from router.choice.sight import LaneState, Sight, by_events, by_memory, prefix_key, unheld_key
from router.intake.index import NO_MATCH, BlockIndex, Holding
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
    """``prefix`` and ``unheld``: keys that tell what the prompt begins with, as far as it is held and just beyond."""

    decision: Decision[L]
    prefix: int | None
    unheld: int | None


class Chooser:
    """One router's chooser: a policy, a seeded source of chance, and what is remembered from choice to choice.

    ``index`` is None where what was sent to a lane is all that is believed of it.
    """

    def __init__(
        self, index: BlockIndex | None, policy: Policy, *, seed: int, now: float, affinity: Affinity | None = None
    ) -> None:
        self._index = index
        self._policy = policy
        self._cut = policy.cut if isinstance(policy, Selective) else None  # asked once: a protocol is slow to answer
        self._random = Random(seed)
        self._busy = BusyShare(now=now)
        self._heat = PrefixHeat()
        self._pioneers = Pioneers()
        self._residences = Residences()
        self._affinity = affinity

    def choose(
        self, prompt: Prompt | None, *, prompt_tokens: int, lanes: Sequence[L], now: float, session: str | None = None
    ) -> Decision[L]:
        """Choose among at least one lanes. ``prompt`` is None where its token ids are unknown: nothing matches then.

        Many lanes had better be a `Pool`, which is asked again and again; they are put in order for one choice else.
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
        if verdict.unheld is not None:
            self._pioneers.add(verdict.unheld, lane.handle)
        if isinstance(question.lanes, Pool):
            question.lanes.look_on(now)
        if self._index is not None and prompt is not None and chosen.width is not None:
            keys = prompt.keys(width=chosen.width, pairs=self._index.pairs(lane.handle))
            self._residences.of(lane.handle).use(keys, width=chosen.width, holds=partial(self._there, lane), now=now)
        if self._affinity is not None and session is not None:
            self._affinity.settle(session, url=lane.url, dp_rank=lane.dp_rank, now=now)

    def _there(self, lane: LaneState, key: int) -> bool:
        assert self._index is not None, "asked only of what events tell"
        return self._index.holds(lane.handle, key) or key in lane.recent

    def _decide(self, question: _Question[L], policy: Policy, chance: Random) -> _Verdict[L]:
        prompt, now, everyone = question.prompt, question.now, len(question.lanes)
        index = self._index if prompt is not None else None
        holdings = index.holdings(prompt) if index is not None and prompt is not None else ()
        lanes, unheld = question.lanes, None
        if self._cut is not None and everyone > self._cut.at_most:
            lanes, unheld = self._nearest(question, self._cut, holdings, chance)
        sights: Sequence[Sight] = Lazily(len(lanes), lambda place: self._sight(question, lanes[place], holdings))
        prefix = None if prompt is None or self._cut is None else prefix_key(prompt, sights)
        around = Circumstances(
            busy=self._busy.share(lanes=everyone, now=now),
            rate=self._busy.rate(lanes=everyone, now=now),
            heat=0.0 if prefix is None else self._heat.of(prefix, now=now),
        )
        candidates = Lazily(len(lanes), lambda place: self._candidate(question, lanes[place], sights[place]))
        choice = policy.choose(candidates, around=around, random=chance)
        decision = Decision(lanes, sights, candidates, choice, prompt_tokens=question.prompt_tokens)
        return _Verdict(decision, prefix, unheld)

    def _nearest(
        self, question: _Question[L], cut: Cut, holdings: Sequence[Holding], chance: Random
    ) -> tuple[Sequence[L], int | None]:
        """The lanes to look at closely, and the key that siblings of the prompt have just beyond what is held."""
        prompt, lanes, now = question.prompt, question.lanes, question.now
        if isinstance(lanes, Pool):
            search = Nearest(lanes.order(cut, now=now), lanes.of, prompt_tokens=question.prompt_tokens, random=chance)
        else:
            search = Nearest.among(lanes, cut, prompt_tokens=question.prompt_tokens, now=now, random=chance)
        width = lanes[0].width
        if prompt is None or width is None or not cut.uncached_weight:
            return search.find(None, (), ()), None
        unheld = unheld_key(prompt, holdings, width=width)
        sent = () if unheld is None else map(search.lane, self._pioneers.of(unheld))
        remembering = [lane for lane in sent if lane is not None and unheld in lane.recent]
        return search.find(self._index, holdings, remembering), unheld

    def _sight(self, question: _Question[L], lane: L, holdings: Sequence[Holding]) -> Sight:
        prompt, now = question.prompt, question.now
        if prompt is None:
            return Sight(lane.width, NO_MATCH, 0)
        if self._index is None:
            return by_memory(prompt, lane, now=now)
        match = self._index.held(lane.handle, holdings)
        return by_events(prompt, lane, match, lasts=self._lasts, now=now)

    def _lasts(self, lane: LaneState, now: float) -> float:
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
