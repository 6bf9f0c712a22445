"""What a workload asks for in all, and how fast replicas must be to bear it."""

from __future__ import annotations

import math
from collections.abc import Iterator

import msgspec

from bench.fleet.plan import FleetPlan
from bench.workloads.request import Ask, Rereadable, Workload
from router.choice.speed import MAX_PACE

__all__ = ["Demand", "DemandError", "demand_of", "hastened", "kept", "too_slow"]

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


def hastened(workload: Workload, factor: float) -> Workload:
    """The same requests, ``factor`` times as fast one after the other."""
    if factor == 1.0:
        return workload

    def asks() -> Iterator[Ask]:
        return (msgspec.structs.replace(ask, at=ask.at / factor) for ask in workload.asks)

    return Workload(f"{workload.name} x{factor:g}", workload.block_tokens, Rereadable(asks))


def too_slow(demand: Demand, plan: FleetPlan) -> str | None:
    """What to do about a fleet whose replicas are slower than a router believes that any is; None: nothing."""
    pace = demand.seconds_per_token(plan)
    if pace <= MAX_PACE:
        return None
    return (
        f"a replica takes {pace:.3g} s a token to be busy, and routers believe in {MAX_PACE:g} s at most: "
        f"--hasten {math.ceil(pace / MAX_PACE)} or more, or fewer replicas"
    )


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
