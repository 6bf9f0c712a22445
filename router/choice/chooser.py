"""From a prompt and the lanes that may serve it to a decision with its reasons.

Puts together what the pure parts say: the index and the memory of what was just sent (what a lane holds, or will in a
moment), the books and the engine's own account (what waits there), the learnt speed, how long caches keep things, the
heat of the prefix, the session's last lane, the policy. The clock is handed in.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import partial
from random import Random
from typing import Generic, TypeVar

import msgspec

from router.choice.affinity import Affinity
from router.choice.candidate import Candidate, Circumstances, Lazily, Policy, Selective
from router.choice.cut import Cut
from router.choice.decision import Considered, Decision
from router.choice.heat import PrefixHeat
from router.choice.judging import Judging
from router.choice.load import BusyShare
from router.choice.nearest import Nearest
from router.choice.order import Order
from router.choice.pioneers import Pioneers
from router.choice.pool import Pool
from router.choice.residence import Residences
from router.choice.sight import LaneState, Sight, prefix_key
from router.intake.index import BlockIndex
from router.prompt import Prompt

__all__ = ["Chooser", "Considered", "Decision", "LaneState"]

L = TypeVar("L", bound=LaneState)


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
        judging: Judging[L] = self._judging(prompt, prompt_tokens=prompt_tokens, now=now, session=session)
        verdict = self._decide(judging, lanes, self._policy, self._random)
        self._settle(judging, lanes, verdict, session)
        return verdict.decision

    def explain(
        self, prompt: Prompt | None, *, prompt_tokens: int, lanes: Sequence[L], now: float, session: str | None = None
    ) -> Decision[L]:
        """What ``choose`` would return now. But for what is noticed of caches it leaves no trace."""
        chance = Random()
        chance.setstate(self._random.getstate())
        judging: Judging[L] = self._judging(prompt, prompt_tokens=prompt_tokens, now=now, session=session)
        return self._decide(judging, lanes, copy.copy(self._policy), chance).decision

    def _judging(self, prompt: Prompt | None, *, prompt_tokens: int, now: float, session: str | None) -> Judging[L]:
        affinity = None if session is None else self._affinity
        return Judging(
            prompt,
            prompt_tokens=prompt_tokens,
            now=now,
            index=self._index,
            residences=self._residences,
            home=None if affinity is None or session is None else affinity.place(session, now=now),
            away_seconds=0.0 if affinity is None else affinity.seconds,
        )

    def _settle(self, judging: Judging[L], lanes: Sequence[L], verdict: _Verdict[L], session: str | None) -> None:
        """Remember what was decided."""
        chosen, prompt, now = verdict.decision.chosen, judging.prompt, judging.now
        lane = chosen.lane
        self._busy.add(chosen.uncached_tokens * lane.speed.pace(now), now=now)
        if verdict.prefix is not None:
            self._heat.add(verdict.prefix, now=now)
        if verdict.unheld is not None:
            self._pioneers.add(verdict.unheld, lane.handle)
        if isinstance(lanes, Pool):
            lanes.look_on(now)
        if self._index is not None and prompt is not None and chosen.width is not None:
            keys = prompt.keys(width=chosen.width, pairs=self._index.pairs(lane.handle))
            there = partial(judging.there, lane)
            self._residences.use(lane.handle, keys, width=chosen.width, holds=there, now=now)
        if self._affinity is not None and session is not None:
            self._affinity.settle(session, url=lane.url, dp_rank=lane.dp_rank, now=now)

    def _decide(self, judging: Judging[L], asked: Sequence[L], policy: Policy, chance: Random) -> _Verdict[L]:
        now, everyone = judging.now, len(asked)
        lanes, unheld = asked.members if isinstance(asked, Pool) else asked, None
        if self._cut is not None and everyone > self._cut.at_most:
            lanes, unheld = self._nearest(judging, asked, self._cut, chance)
        sights: Sequence[Sight]
        candidates: Sequence[Candidate]
        if self._cut is None:  # whoever may be shown a whole fleet looks at few of its lanes
            sights = Lazily(len(lanes), lambda place: judging.sight(lanes[place]))
            candidates = Lazily(len(lanes), lambda place: judging.candidate(lanes[place], sights[place]))
        else:
            sights = [judging.sight(lane) for lane in lanes]
            candidates = [judging.candidate(lane, sight) for lane, sight in zip(lanes, sights, strict=True)]
        prefix = None if judging.prompt is None or self._cut is None else prefix_key(judging.prompt, sights)
        around = Circumstances(
            busy=self._busy.share(lanes=everyone, now=now),
            rate=self._busy.rate(lanes=everyone, now=now),
            heat=0.0 if prefix is None else self._heat.of(prefix, now=now),
        )
        choice = policy.choose(candidates, around=around, random=chance)
        decision = Decision(lanes, sights, candidates, choice, prompt_tokens=judging.prompt_tokens)
        return _Verdict(decision, prefix, unheld)

    def _nearest(
        self, judging: Judging[L], lanes: Sequence[L], cut: Cut, chance: Random
    ) -> tuple[Sequence[L], int | None]:
        """The lanes to look at closely, and the key that siblings of the prompt have just beyond what is held."""
        order = lanes.order(cut, now=judging.now) if isinstance(lanes, Pool) else Order(cut, lanes, now=judging.now)
        search = Nearest(order, prompt_tokens=judging.prompt_tokens, random=chance)
        width = lanes[0].width
        if judging.prompt is None or width is None or not cut.uncached_weight:
            return search.by_burden(), None
        unheld = judging.key_unheld(width=width)
        sent = [] if unheld is None else order.of(self._pioneers.of(unheld), 0.0)
        remembering = [(cost, lane) for cost, lane in sent if unheld is not None and unheld in lane.recent]
        return search.by_holdings(self._index, judging.holdings, remembering), unheld
