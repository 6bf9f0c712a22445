"""What a workload asks for in all, and how fast replicas must be to bear it."""

from __future__ import annotations

import msgspec

from bench.fleet.plan import FleetPlan
from bench.workloads.request import Ask, Workload

__all__ = ["Demand", "DemandError", "demand_of", "kept"]

MOST_KEPT = 10_000_000
"""Block ids: a few hundred megabytes."""


class DemandError(ValueError):
    """A workload that no fleet can be measured with, in one line."""


class Demand(msgspec.Struct, frozen=True, kw_only=True):
    """Sums over a workload. ``seconds`` from ``first``, when the first request comes, to the last one."""

    requests: int
    tokens: int
    first: float
    seconds: float

    def seconds_per_token(self, plan: FleetPlan) -> float:
        """Of a replica of mean speed, such that ``plan.load`` of the fleet's time would go into uncached prompts."""
        return plan.load * plan.replicas * self.seconds / self.tokens


def demand_of(workload: Workload) -> Demand:
    """Read a workload once.

    Raises:
        DemandError: it has no requests, or no time between them.
        TraceError: a recording cannot be read.
    """
    requests = tokens = 0
    first = last = 0.0
    for ask in workload.asks:
        first, last = (ask.at if not requests else first), ask.at
        requests += 1
        tokens += ask.tokens
    if last <= first:
        raise DemandError(
            f"{workload.name}: {requests} requests within 0 s; a fleet's load needs some time between them"
        )
    return Demand(requests=requests, tokens=tokens, first=first, seconds=last - first)


def kept(workload: Workload) -> Workload:
    """The same requests, read once and kept, if they are few enough; else they are read again for each policy.

    Raises:
        TraceError: a recording cannot be read.
    """
    asks: list[Ask] = []
    ids = 0
    for ask in workload.asks:
        ids += len(ask.blocks)
        if ids > MOST_KEPT:
            return workload
        asks.append(ask)
    return Workload(workload.name, workload.block_tokens, asks)
