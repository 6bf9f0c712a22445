"""One run: a fleet put together for a plan and a policy, a workload played through it, and what came of it."""

from __future__ import annotations

import itertools
import time
from functools import partial
from random import Random

from bench.fleet.clock import VirtualClock
from bench.fleet.demand import Demand
from bench.fleet.engine import SimEngine
from bench.fleet.journey import Journey
from bench.fleet.outcome import Outcome
from bench.fleet.plan import FleetPlan
from bench.fleet.policies.registry import PolicyEntry
from bench.fleet.router import LOOK_SECONDS, SimRouter
from bench.workloads.request import Workload

__all__ = ["SimFleet", "simulate"]


def simulate(workload: Workload, demand: Demand, plan: FleetPlan, entry: PolicyEntry) -> Outcome:
    """Play a workload once; the same arguments give the same outcome, but for what it cost."""
    begun = time.process_time()
    fleet = SimFleet(workload, demand, plan, entry)
    fleet.play()
    fleet.outcome.cpu_seconds = time.process_time() - begun
    return fleet.outcome


class SimFleet:
    """Replicas and routers on one clock."""

    def __init__(self, workload: Workload, demand: Demand, plan: FleetPlan, entry: PolicyEntry) -> None:
        self.clock = VirtualClock()
        self.outcome = Outcome(replicas=plan.replicas, block_tokens=workload.block_tokens)
        self._workload = workload
        self._demand = demand
        self._plan = plan
        pace = demand.seconds_per_token(plan)
        self.engines = [
            SimEngine(
                self.clock,
                blocks=plan.blocks,
                block_tokens=workload.block_tokens,
                seconds_per_token=pace / speed,
                decode_cost=plan.decode_cost,
                log_batches=plan.kept_batches,
            )
            for speed in plan.relative_speeds
        ]
        self.routers = [
            SimRouter(self.clock, plan, self.engines, entry, number=number, block_tokens=workload.block_tokens)
            for number in range(plan.routers)
        ]

    def play(self) -> None:
        """Let every request come, and run on until all are answered and all events have arrived."""
        self._expect_restarts()
        if len(self.routers) > 1:
            self._look()
        for ask, router in zip(self._workload.asks, itertools.cycle(self.routers), strict=False):
            self.clock.run_until(ask.at - self._demand.first)
            journey = Journey(
                ask,
                router,
                self.engines,
                clock=self.clock,
                outcome=self.outcome,
                block_tokens=self._workload.block_tokens,
            )
            journey.set_out()
        self.clock.run_out()

    def _look(self) -> None:
        """One router alone has sent everything itself; several learn from the engines what the others sent."""
        for router in self.routers:
            router.look()
        if self.clock.now < self._demand.seconds:
            self.clock.after(LOOK_SECONDS, self._look)

    def _expect_restarts(self) -> None:
        luck = Random(f"{self._plan.seed} restarts")
        for _ in range(self._plan.restarts):
            self.clock.after(luck.uniform(0.0, self._demand.seconds), partial(self._lose_one, luck))

    def _lose_one(self, luck: Random) -> None:
        """A replica goes, but never the last one."""
        up = [place for place, engine in enumerate(self.engines) if engine.feed.up]
        if len(up) < 2:
            return
        replica = luck.choice(up)
        for router in self.routers:
            router.left(replica)
        self.engines[replica].stop()
        self.clock.after(self._plan.away, partial(self._bring_back, replica))

    def _bring_back(self, replica: int) -> None:
        self.engines[replica].start_again()
        for router in self.routers:
            router.back(replica)
