"""Which routers a bench compares: all it knows, or those that its command line names, as far as they are here."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import msgspec

from bench.router.routers import Router, missing

__all__ = ["Lineup", "LineupError", "add_only_flag", "line_up"]


class LineupError(ValueError):
    """A name that no router of the bench has, in one line."""


class Lineup(msgspec.Struct, frozen=True):
    """Who is measured, and in a line each why others are not."""

    routers: Sequence[Router]
    absent: Sequence[str]


def add_only_flag(parser: argparse.ArgumentParser, routers: Sequence[Router]) -> None:
    """``--only``, which ``line_up`` takes."""
    names = ", ".join(router.name for router in routers)
    parser.add_argument("--only", nargs="+", metavar="ROUTER", help=f"some of {names} (default: all)")


def line_up(routers: Sequence[Router], only: Sequence[str] | None) -> Lineup:
    """Those of ``routers`` that are asked for.

    Raises:
        LineupError: one is asked for that is none of them.
    """
    names = [router.name for router in routers]
    if unknown := sorted(set(only or ()) - set(names)):
        raise LineupError(f"no router is called {unknown[0]}; there are {', '.join(names)}")
    wanted = [router for router in routers if only is None or router.name in only]
    reasons = [(router, missing(router)) for router in wanted]
    return Lineup(
        routers=[router for router, why in reasons if why is None],
        absent=[why for _, why in reasons if why is not None],
    )
