"""One simulated router: its rule, its index where the rule wants one, and its ears at every replica."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from bench.fleet.clock import VirtualClock
from bench.fleet.engine import SimEngine
from bench.fleet.follower import Follower
from bench.fleet.link import Link
from bench.fleet.plan import FleetPlan
from bench.fleet.policies.registry import PolicyEntry
from bench.fleet.rule import Surroundings
from bench.fleet.unit_index import UnitIndex

__all__ = ["SimRouter"]

LOOK_SECONDS = 0.5
"""How often a real router asks engines for their loads."""


class SimRouter:
    """Router ``number`` of a fleet."""

    def __init__(
        self,
        clock: VirtualClock,
        plan: FleetPlan,
        engines: Sequence[SimEngine],
        entry: PolicyEntry,
        *,
        number: int,
        block_tokens: int,
    ) -> None:
        self.index = UnitIndex(block_tokens=block_tokens, cache_blocks=plan.blocks)
        self.handles = [self.index.add_lane(advertised_width=1) for _ in engines]
        self.followers: list[Follower] = []
        self._clock = clock
        self._engines = engines
        around = Surroundings(
            index=self.index,
            handles=self.handles,
            blocks=plan.blocks,
            block_tokens=block_tokens,
            seed=Random(f"{plan.seed} router {number}").getrandbits(32),
        )
        self.rule = entry.make(around)
        if entry.follows_events:
            self._follow(plan, number)

    def _follow(self, plan: FleetPlan, number: int) -> None:
        for place, (engine, handle) in enumerate(zip(self._engines, self.handles, strict=True)):
            follower = Follower(self._clock, engine.feed, index=self.index, handle=handle, lag=plan.lag)
            luck = Random(f"{plan.seed} router {number} replica {place}")
            link = Link(self._clock, lag=plan.lag, loss=plan.loss, random=luck, receive=follower.live)
            engine.feed.listeners.append(link.send)
            self.followers.append(follower)
            follower.connected()

    def left(self, replica: int) -> None:
        """A replica is gone."""
        self.index.clear(self.handles[replica])
        self.rule.left(replica)

    def back(self, replica: int) -> None:
        """Another engine stands behind the same address."""
        self.rule.back(replica)
        if self.followers:
            self.followers[replica].connected()

    def look(self) -> None:
        """Ask every engine for its load."""
        for place, engine in enumerate(self._engines):
            if engine.feed.up:
                self.rule.reported(place, engine.account(), now=self._clock.now)
