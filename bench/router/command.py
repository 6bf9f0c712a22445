"""``python -m bench router``: its flags, and who is measured here."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import uvloop

from bench.children import ChildError, ChildGroup
from bench.client import RequestError
from bench.figures import Figure, as_json, as_text
from bench.flag_values import at_least
from bench.router.cases import every_case
from bench.router.lexicon import Lexicon, write_lexicon
from bench.router.lineup import LineupError, add_only_flag, line_up
from bench.router.measure import Plan, measure
from bench.router.routers import KVSTEER, SMG, VLLM_ROUTER, Router
from bench.router.stage import set_stage

__all__ = ["add_command"]

_ROUTERS = (
    Router(product=KVSTEER, policy="kv"),
    Router(product=KVSTEER, policy="kv", processes=2),
    Router(product=VLLM_ROUTER, policy="kv_aware"),
    Router(product=VLLM_ROUTER, policy="round_robin"),
    Router(product=SMG, policy="cache_aware"),
)
_LENGTHS, _QUICK_LENGTHS = (200, 8192), (1024,)


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``router`` to the commands."""
    parser = commands.add_parser("router", help="measure what routers add to a request and cost, ours and peers'")
    parser.add_argument("--runs", type=at_least(1), default=3, help="figures are medians of so many (default: 3)")
    parser.add_argument("--seed", type=int, default=0, help="of the prompts (default: 0)")
    parser.add_argument("--quick", action="store_true", help="little of everything: to see that it works")
    add_only_flag(parser, _ROUTERS)
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    plan = Plan(
        cases=every_case(_QUICK_LENGTHS if args.quick else _LENGTHS),
        runs=args.runs,
        one_by_one=6 if args.quick else 100,
        at_once=36 if args.quick else 480,
        seed=args.seed,
    )
    try:
        lineup = line_up(_ROUTERS, args.only)
        _say(*lineup.absent)
        _say(
            *(
                f"{one.name} answers 400 to token ids: it is asked texts only"
                for one in lineup.routers
                if not one.takes_ids
            )
        )
        uvloop.run(_measure(lineup.routers, plan, _print_json if args.json else _print_text))
    except (LineupError, ChildError, RequestError) as error:
        _say(str(error))
        return 1
    return 0


async def _measure(routers: Sequence[Router], plan: Plan, show: Callable[[Figure], None]) -> None:
    with tempfile.TemporaryDirectory(prefix="kvsteer-bench-") as name:
        folder = Path(name)
        write_lexicon(folder)
        async with ChildGroup(folder) as children:
            subjects = await children.supervise(set_stage(children, routers, folder))
            await children.supervise(_show_all(measure(subjects, Lexicon(folder), plan), show))


async def _show_all(figures: AsyncIterator[Figure], show: Callable[[Figure], None]) -> None:
    async for one in figures:
        show(one)


def _print_json(one: Figure) -> None:
    print(as_json(one), flush=True)


def _print_text(one: Figure) -> None:
    print(as_text(one), flush=True)


def _say(*lines: str) -> None:
    for line in lines:
        print(f"bench router: {line}", file=sys.stderr)
