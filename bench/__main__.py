"""``python -m bench``: the commands that run fleets and measure them."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from bench import ranks, smollm2, tracing
from bench.demo import command as demo
from bench.e2e import command as e2e
from bench.engine import command as engine
from bench.fleet import command as fleet
from bench.index import command as index
from bench.router import command as router
from bench.suite import command as suite
from program.command_line import LineParser, complain

__all__ = ["main"]

INTERRUPTED, UNREAD = 130, 141  # as shells call what Ctrl-C ended, and who wrote for nobody


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the process's exit status."""
    parser: argparse.ArgumentParser = LineParser(prog="python -m bench", description="Run fleets and measure them.")
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
    return _run(args, program=f"bench {args.command}")


def _run(args: argparse.Namespace, *, program: str) -> int:
    """The command's exit status. Whatever it has started is ended by the time it raises."""
    try:
        status: int = args.run(args)
    except KeyboardInterrupt:
        print(f"{program}: interrupted; every process has been stopped", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # as by `| head`; what is left to be written goes nowhere
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return UNREAD
    except ModuleNotFoundError as error:
        return complain(program, f"{error.name} is not installed: pip install 'kvsteer[engine]'", status=1)
    return status


if __name__ == "__main__":
    sys.exit(main())
