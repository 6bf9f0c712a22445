"""The figures of a run, policy by policy, and the table that shows them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import median

import msgspec
from rich.table import Table

from bench.figures import Figure, figure
from bench.fleet.demand import Demand
from bench.fleet.outcome import Hits, Outcome, quantile
from bench.fleet.plan import FleetPlan
from bench.workloads.request import Workload

__all__ = ["CEILING", "Comparison", "Metric", "figures", "table"]

CEILING = "pooled-ceiling"


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """A workload on a fleet, once for each policy and run; ``ceiling`` is what one pooled cache would have found."""

    workload: Workload
    demand: Demand
    plan: FleetPlan
    ceiling: Hits
    outcomes: Mapping[str, Sequence[Outcome]]

    @property
    def case(self) -> str:
        """The workload and the fleet, as far as it is not the usual one."""
        usual = FleetPlan()
        names = ["replicas", "blocks"]
        names += [name for name in msgspec.structs.asdict(usual) if name not in (*names, "seed")]
        given = {name: getattr(self.plan, name) for name in names}
        shown = [f"{name}={_brief(value)}" for name, value in given.items() if value != getattr(usual, name)]
        always = [f"{name}={given[name]}" for name in names[:2]]
        return " ".join([self.workload.name, *always, *(one for one in shown if one not in always)])

    @property
    def mean_prefill(self) -> float:
        """Seconds to compute the mean prompt on a replica of mean speed, with nothing cached."""
        return self.demand.tokens / self.demand.requests * self.demand.seconds_per_token(self.plan)


class Metric(msgspec.Struct, frozen=True):
    """One figure of an outcome; ``heading`` and ``shown`` are for the table, and so is half of what runs differ by."""

    name: str
    unit: str
    heading: str
    shown: str
    value: Callable[[Outcome, Comparison], float]
    spread: bool = False


METRICS = (
    Metric("token_hit_rate", "share", "token hits", ".3f", lambda out, _: out.hits.token_rate),
    Metric("share_of_ceiling", "share", "of ceiling", ".3f", lambda out, of: _share(out, of.ceiling)),
    Metric("block_hit_rate", "share", "block hits", ".3f", lambda out, _: out.hits.block_rate, True),
    Metric("predicted_hit_rate", "share", "predicted", ".3f", lambda out, _: out.predicted_tokens / out.hits.tokens),
    Metric("work_imbalance", "ratio", "imbalance", ".2f", lambda out, _: out.imbalance),
    Metric("ttft_mean_prefills", "ratio", "TTFT/prefill", ".3f", lambda out, of: out.ttft_mean / of.mean_prefill, True),
    Metric("ttft_mean", "s", "TTFT mean", ".3f", lambda out, _: out.ttft_mean),
    Metric("ttft_p50", "s", "p50", ".3f", lambda out, _: quantile(out.ordered_ttfts, 0.5)),
    Metric("ttft_p90", "s", "p90", ".2f", lambda out, _: quantile(out.ordered_ttfts, 0.9)),
    Metric("ttft_p99", "s", "p99", ".2f", lambda out, _: quantile(out.ordered_ttfts, 0.99)),
    Metric("choice", "us", "us/choice", ".0f", lambda out, _: out.choice_ns / out.choices / 1e3),
    Metric("simulation", "s", "CPU s", ".1f", lambda out, _: out.cpu_seconds),
)
"""The last two say what this machine took, and are no part of what is simulated."""


def figures(of: Comparison) -> list[Figure]:
    """One object a policy and metric, and the ceiling's."""
    runs = max(map(len, of.outcomes.values()), default=1)
    found = [
        figure("fleet", of.case, CEILING, "token_hit_rate", [of.ceiling.token_rate] * runs, unit="share"),
        figure("fleet", of.case, CEILING, "block_hit_rate", [of.ceiling.block_rate] * runs, unit="share"),
    ]
    for policy, outcomes in of.outcomes.items():
        for metric in METRICS:
            values = [metric.value(outcome, of) for outcome in outcomes]
            found.append(figure("fleet", of.case, policy, metric.name, values, unit=metric.unit))
    return found


def table(of: Comparison) -> Table:
    """A row a policy, and one for the ceiling; medians of the runs."""
    shown = Table(title=of.case, title_justify="left")
    shown.add_column("policy")
    for metric in METRICS:
        shown.add_column(metric.heading, justify="right")
    for policy, outcomes in of.outcomes.items():
        shown.add_row(policy, *(_cell(metric, outcomes, of) for metric in METRICS))
    shown.add_section()
    ceiling = {"token_hit_rate": of.ceiling.token_rate, "block_hit_rate": of.ceiling.block_rate}
    shown.add_row(CEILING, *(f"{ceiling[one.name]:{one.shown}}" if one.name in ceiling else "" for one in METRICS))
    return shown


def _cell(metric: Metric, outcomes: Sequence[Outcome], of: Comparison) -> str:
    values = [metric.value(outcome, of) for outcome in outcomes]
    spread = f" ±{(max(values) - min(values)) / 2:{metric.shown}}" if metric.spread and len(values) > 1 else ""
    return f"{median(values):{metric.shown}}{spread}"


def _share(outcome: Outcome, ceiling: Hits) -> float:
    return outcome.hits.token_rate / ceiling.token_rate if ceiling.cached_tokens else 1.0


def _brief(value: object) -> str:
    return ",".join(f"{one:g}" for one in value) if isinstance(value, tuple) else f"{value:g}"
