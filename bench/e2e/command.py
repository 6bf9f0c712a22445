"""``python -m bench e2e``: its flags, and which routers are here."""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench.children import ChildError
from bench.e2e.engines import EnginesError
from bench.e2e.outcome import Outcome, figures
from bench.e2e.run import RunError, play_behind
from bench.e2e.scene import Scene, SceneError
from bench.figures import as_json, as_text
from bench.flag_values import above, at_least
from bench.router.lineup import LineupError, add_only_flag, line_up
from bench.router.routers import KVSTEER, SMG, VLLM_ROUTER, Router
from bench.workloads.choose import Reading, generated_workload, open_workload
from bench.workloads.generated import Shape
from bench.workloads.request import Workload
from router.trace.lines import TraceError

__all__ = ["add_command"]

_ROUTERS = (
    Router(product=KVSTEER, policy="kv"),
    Router(product=KVSTEER, policy="round_robin"),
    Router(product=VLLM_ROUTER, policy="kv_aware"),
    Router(product=VLLM_ROUTER, policy="round_robin"),
    Router(product=SMG, policy="cache_aware"),
)


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``e2e`` to the commands."""
    parser = commands.add_parser("e2e", help="play a workload behind each router in turn, on one fleet of sim engines")
    parser.add_argument("--trace", type=Path, nargs="+", help="recorded workload (default: one made from the seed)")
    parser.add_argument("--requests", type=at_least(1), default=800, help="the first so many are played (default: 800)")
    parser.add_argument("--seconds", type=above(0.0), default=30.0, help="they are played within (default: 30)")
    parser.add_argument("--load", type=above(0.0), default=0.8, help="busy share without any hit (default: 0.8)")
    parser.add_argument("--cache-share", type=above(0.0), default=0.08, help="of all tokens, a cache's (default: 0.08)")
    parser.add_argument("--replicas", type=at_least(1), default=8, help="engines (default: 8)")
    parser.add_argument("--runs", type=at_least(1), default=1, help="figures are medians of so many (default: 1)")
    parser.add_argument("--seed", type=int, default=0, help="of the workload and its texts (default: 0)")
    add_only_flag(parser, _ROUTERS)
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    try:
        lineup, scene = line_up(_ROUTERS, args.only), _scene(args)
        _say(*scene.setting(), *lineup.absent)
        _say(*(f"{one.name} {why}" for one in lineup.routers if (why := one.blind_because) is not None))
        asyncio.run(_print_figures(lineup.routers, scene, runs=args.runs, json=args.json))
    except (LineupError, TraceError, SceneError, ChildError, EnginesError, RunError) as error:
        _say(str(error))
        return 1
    return 0


def _scene(args: argparse.Namespace) -> Scene:
    return Scene(
        workload=_workload(args),
        requests=args.requests,
        seconds=args.seconds,
        seed=args.seed,
        replicas=args.replicas,
        load=args.load,
        cache_share=args.cache_share,
    )


def _workload(args: argparse.Namespace) -> Workload:
    if args.trace is None:
        return generated_workload(Shape(requests=args.requests), seed=args.seed)
    return open_workload(args.trace, Reading())


async def _print_figures(routers: Sequence[Router], scene: Scene, *, runs: int, json: bool) -> None:
    outcomes: dict[str, list[Outcome]] = {router.name: [] for router in routers}
    with tempfile.TemporaryDirectory(prefix="kvsteer-bench-") as folder:
        async for router, outcome in play_behind(routers, scene, runs=runs, log_dir=Path(folder)):
            outcomes[router.name].append(outcome)
    case = f"{scene.workload.name}, {len(scene.asks)} requests, {scene.replicas} replicas"
    for name, ours in outcomes.items():
        for one in figures(case, name, ours):
            print(as_json(one) if json else as_text(one), flush=True)


def _say(*lines: str) -> None:
    for line in lines:
        print(f"bench e2e: {line}", file=sys.stderr)
