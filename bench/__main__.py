"""``python -m bench``: the commands that run fleets and measure them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import NoReturn

from bench import ranks, smollm2, tracing
from bench.demo import command as demo
from bench.e2e import command as e2e
from bench.engine import command as engine
from bench.fleet import command as fleet
from bench.index import command as index
from bench.router import command as router
from bench.suite import command as suite

__all__ = ["main"]

BAD_FLAGS_STATUS = 2


class _LineParser(argparse.ArgumentParser):
    """Ends with one line that says what is wrong, where argparse would print its usage too."""

    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: error: {' '.join(message.split())}", file=sys.stderr)
        sys.exit(BAD_FLAGS_STATUS)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the process's exit status."""
    parser: argparse.ArgumentParser = _LineParser(prog="python -m bench", description="Run fleets and measure them.")
    commands = parser.add_subparsers(dest="command", required=True)
    demo.add_command(commands)
    smollm2.add_command(commands)
    ranks.add_command(commands)
    engine.add_command(commands)
    fleet.add_command(commands)
    index.add_command(commands)
    router.add_command(commands)
    e2e.add_command(commands)
    tracing.add_command(commands)
    suite.add_command(commands)
    args = parser.parse_args(argv)
    status: int = args.run(args)
    return status


if __name__ == "__main__":
    sys.exit(main())
