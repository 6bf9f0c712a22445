"""How what a choice costs grows with the replicas and with the prompt: made-up fleets of growing sizes, timed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from bench.figures import Figure, figure
from bench.fleet.demand import demand_of
from bench.fleet.plan import FleetPlan
from bench.fleet.policies.registry import PolicyEntry
from bench.fleet.simulation import simulate
from bench.workloads.choose import generated_workload
from bench.workloads.generated import Shape

__all__ = ["growth"]

REPLICAS = (8, 64, 256, 1_000)
ROOT_TOKENS = (1_024, 8_192, 65_536)
REQUESTS = 2_000
"""A case; few, for where a rule looks at every replica it takes milliseconds."""


def growth(shape: Shape, plan: FleetPlan, entries: Sequence[PolicyEntry], *, runs: int) -> Iterator[Figure]:
    """CPU time of a choice and of everything that a simulated request takes, case by case as they are done.

    The fleet grows under prompts of ``shape``, of one turn each, and the part of prompts that many share in a fleet as
    planned. As many requests come whatever the fleet, and as often to each replica.
    """
    shape = msgspec.structs.replace(shape, requests=REQUESTS, turns=1)
    for replicas in REPLICAS:
        gap = shape.session_gap * plan.replicas / replicas
        grown = msgspec.structs.replace(plan, replicas=replicas)
        yield from _costs(msgspec.structs.replace(shape, session_gap=gap), grown, entries, runs)
    for tokens in ROOT_TOKENS:
        room = plan.blocks * max(tokens // shape.root_tokens, 1)
        grown = msgspec.structs.replace(plan, blocks=room)
        yield from _costs(msgspec.structs.replace(shape, root_tokens=tokens), grown, entries, runs)


def _costs(shape: Shape, plan: FleetPlan, entries: Sequence[PolicyEntry], runs: int) -> Iterator[Figure]:
    workload = generated_workload(shape, seed=plan.seed)
    demand = demand_of(workload)
    case = f"growth replicas={plan.replicas} prompt={demand.tokens // demand.requests} tokens"
    for entry in entries:
        played = [simulate(workload, demand, plan, entry) for _ in range(runs)]
        choices = [outcome.choice_ns / outcome.choices / 1e3 for outcome in played]
        requests = [outcome.cpu_seconds / outcome.requests * 1e6 for outcome in played]
        yield figure("fleet", case, entry.name, "choice", choices, unit="us")
        yield figure("fleet", case, entry.name, "simulated_request", requests, unit="us")
