"""The flags of ``python -m bench fleet``, and the plan that they make."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec

from bench.flag_values import above, at_least, between
from bench.fleet.plan import FleetPlan
from bench.fleet.policies.registry import ENTRIES, SHOWN
from bench.workloads.generated import SHAPES, Shape

__all__ = ["add_flags", "plan_of"]

T = TypeVar("T", int, float)
USUAL = FleetPlan()


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add every flag to a command."""
    source = parser.add_argument_group("workload")
    source.add_argument("--trace", nargs="+", type=Path, metavar="FILE", help="recorded requests (default: made up)")
    source.add_argument("--block-tokens", type=at_least(1), metavar="N", help="tokens a block (default: the trace's)")
    source.add_argument(
        "--tokenizer",
        type=Path,
        metavar="PATH",
        help="of recorded texts: tokenizer.json, or its folder (default: 4 bytes)",
    )
    source.add_argument(
        "--shape",
        type=_shape,
        default=Shape(),
        metavar="JSON",
        help="of made-up requests: '{\"requests\": 100000}', or coding",
    )
    source.add_argument(
        "--hasten", type=above(0.0), default=1.0, metavar="N", help="times as fast as recorded (default: 1)"
    )
    fleet = parser.add_argument_group("fleet")
    _add(fleet, "replicas", at_least(1), "caches, each with a prefill server of its own")
    _add(fleet, "blocks", at_least(1), "blocks of each cache")
    _add(fleet, "load", above(0.0), "busy share of the replicas if nothing were cached")
    fleet.add_argument(
        "--speeds", type=_speeds, default=USUAL.speeds, metavar="S,S,...", help="relative, repeated over the replicas"
    )
    _add(fleet, "decode-cost", between(0.0, math.inf, low_too=True), "prompt tokens as slow as an output token")
    fleet.add_argument("--lag", type=_milliseconds, default=USUAL.lag, metavar="MS", help="of events (default: 0)")
    _add(fleet, "loss", between(0.0, 1.0, low_too=True), "share of event batches that never arrive")
    _add(fleet, "restarts", at_least(0), "times that a replica loses everything")
    _add(fleet, "routers", at_least(1), "that requests are dealt to in turn")
    _add(fleet, "seed", int, "of everything that is left to chance")
    report = parser.add_argument_group("report")
    report.add_argument(
        "--policy", nargs="+", choices=ENTRIES, default=SHOWN, metavar="NAME", help="of " + ", ".join(ENTRIES)
    )
    report.add_argument("--runs", type=at_least(1), default=1, help="with a seed each; figures are medians")
    report.add_argument("--growth", action="store_true", help="time choices in fleets and prompts of growing sizes")
    report.add_argument("--plot", type=Path, metavar="PNG", help="draw times to first token, and hit rates")
    report.add_argument("--json", action="store_true", help="one JSON object a line")


def plan_of(args: argparse.Namespace) -> FleetPlan:
    """The fleet that was asked for.

    Raises:
        ValueError: restarts of a fleet that has nobody else.
    """
    if args.restarts and args.replicas < 2:
        raise ValueError(f"--restarts {args.restarts} needs 2 replicas or more, got {args.replicas}")
    names = [name for name in msgspec.structs.asdict(USUAL) if hasattr(args, name)]
    return FleetPlan(**{name: getattr(args, name) for name in names})


def _add(group: argparse._ArgumentGroup, name: str, kind: Callable[[str], object], text: str) -> None:
    usual = getattr(USUAL, name.replace("-", "_"))
    group.add_argument(f"--{name}", type=kind, default=usual, metavar="N", help=f"{text} (default: {usual:g})")


def _milliseconds(text: str) -> float:
    return between(0.0, math.inf, low_too=True)(text) / 1e3


def _speeds(text: str) -> tuple[float, ...]:
    return tuple(map(above(0.0), text.split(",")))


def _shape(text: str) -> Shape:
    if text in SHAPES:
        return SHAPES[text]
    try:
        return msgspec.json.decode(text, type=Shape)
    except msgspec.MsgspecError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
