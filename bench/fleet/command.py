"""``python -m bench fleet``: plays one workload through the same fleet under one policy after the other."""

from __future__ import annotations

import argparse
import importlib.util
import sys
from pathlib import Path

import msgspec
from rich.console import Console

from bench.figures import as_json, as_text
from bench.fleet.demand import DemandError, demand_of, hastened, kept, too_slow
from bench.fleet.flags import add_flags, plan_of
from bench.fleet.growth import growth
from bench.fleet.outcome import Outcome
from bench.fleet.plan import FleetPlan
from bench.fleet.policies.registry import ENTRIES
from bench.fleet.pooled import pooled_hits
from bench.fleet.report import Comparison, figures, table
from bench.fleet.simulation import simulate
from bench.workloads.choose import Reading, generated_workload, open_workload
from bench.workloads.request import Workload
from router.choice.file_tokenizer import load_tokenizer
from router.trace.lines import TraceError

__all__ = ["add_command"]

TABLE_WIDTH = 160


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``fleet`` to the commands."""
    parser = commands.add_parser("fleet", help="simulate a fleet of caches behind routers of several policies")
    add_flags(parser)
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    if args.plot is not None and (trouble := _cannot_draw(args.plot)) is not None:
        return _complain(f"--plot: {trouble}", status=1)
    try:
        plan = plan_of(args)
        if args.growth:
            return _grow(plan, args)
        compared = _compare(kept(hastened(_workload(args), args.hasten)), plan, args)
    except (TraceError, DemandError) as error:
        return _complain(str(error), status=1)
    except ValueError as error:
        return _complain(f"error: {error}", status=2)
    if args.json:
        for one in figures(compared):
            print(as_json(one))
    else:
        Console(width=TABLE_WIDTH).print(table(compared))
    return 0 if args.plot is None else _draw(compared, args.plot)


def _grow(plan: FleetPlan, args: argparse.Namespace) -> int:
    entries = [ENTRIES[policy] for policy in dict.fromkeys(args.policy)]
    for one in growth(args.shape, plan, entries, runs=args.runs):
        print(as_json(one) if args.json else as_text(one), flush=True)
    return 0


def _cannot_draw(path: Path) -> str | None:
    """Why there would be no picture, as far as that can be told before the fleet is played."""
    if importlib.util.find_spec("matplotlib") is None:
        return "needs matplotlib: pip install -c constraints.txt -e '.[bench]'"
    return None if path.parent.is_dir() else f"there is no folder {path.parent}"


def _draw(compared: Comparison, path: Path) -> int:
    from bench.fleet.plot import draw

    try:
        draw(compared, path)
    except OSError as error:
        return _complain(f"--plot: {error}", status=1)
    return 0


def _workload(args: argparse.Namespace) -> Workload:
    if args.trace is None:
        return generated_workload(args.shape, seed=args.seed)
    encode = None if args.tokenizer is None else load_tokenizer(args.tokenizer).encode
    return open_workload(args.trace, Reading(block_tokens=args.block_tokens, encode=encode))


def _compare(workload: Workload, plan: FleetPlan, args: argparse.Namespace) -> Comparison:
    demand = demand_of(workload)
    if (trouble := too_slow(demand, plan)) is not None:
        _say(trouble)
    ceiling = pooled_hits(workload, blocks=plan.replicas * plan.blocks)
    outcomes: dict[str, list[Outcome]] = {}
    for policy in dict.fromkeys(args.policy):
        _say(f"{policy}: {demand.requests} requests on {plan.replicas} replicas")
        seeded = [msgspec.structs.replace(plan, seed=plan.seed + run) for run in range(args.runs)]
        outcomes[policy] = [simulate(workload, demand, one, ENTRIES[policy]) for one in seeded]
    return Comparison(workload=workload, demand=demand, plan=plan, ceiling=ceiling, outcomes=outcomes)


def _say(line: str) -> None:
    print(f"bench fleet: {line}", file=sys.stderr)


def _complain(line: str, *, status: int) -> int:
    _say(line)
    return status
