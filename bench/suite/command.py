"""``python -m bench all``: every bench as a process of its own, within twenty minutes on two cores."""

from __future__ import annotations

import argparse
import datetime
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from bench.figures import Figure
from bench.suite.history import RESULTS, Part, Run, as_markdown, record
from bench.suite.machine import describe, revision

__all__ = ["add_command"]

_BENCHES: tuple[tuple[str, ...], ...] = (
    ("engine", "--runs", "3"),
    ("index",),
    ("router",),
    ("e2e",),
    ("fleet",),
)
_ROOT = Path(__file__).parent.parent.parent


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``all`` to the commands."""
    parser = commands.add_parser("all", help="run every bench and print their tables")
    parser.add_argument("--only", nargs="+", metavar="BENCH", help="of " + ", ".join(name for name, *_ in _BENCHES))
    parser.add_argument("--record", action="store_true", help=f"put the tables into {RESULTS.relative_to(_ROOT)}")
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    names = [name for name, *_ in _BENCHES]
    if unknown := sorted(set(args.only or ()) - set(names)):
        print(f"bench all: no bench is called {unknown[0]}; there are {', '.join(names)}", file=sys.stderr)
        return 2
    machine = describe()  # before the benches are what keeps it busy
    parts = tuple(_play(bench) for bench in _BENCHES if not args.only or bench[0] in args.only)
    run = Run(day=datetime.date.today().isoformat(), revision=revision(), machine=machine, parts=parts)
    print(as_markdown(run))
    if args.record:
        record(run, RESULTS)
    return max(part.status for part in parts)


def _play(bench: Sequence[str]) -> Part:
    """One bench; what it has to say besides figures goes where ours goes."""
    command = ["-m", "bench", *bench, "--json"]
    print(f"bench all: {shlex.join(bench)}", file=sys.stderr)
    begun = time.monotonic()
    done = subprocess.run([sys.executable, *command], cwd=_ROOT, stdout=subprocess.PIPE, check=False)
    figures = tuple(msgspec.json.decode(line, type=Figure) for line in done.stdout.splitlines())
    seconds = time.monotonic() - begun
    return Part(command=shlex.join(["python", *command]), figures=figures, status=abs(done.returncode), seconds=seconds)
