"""Lines that a command prints while it goes on with something more important."""

from __future__ import annotations

import sys

from router.flags import PROGRAM
from router.replay import cannot_print
from router.trace.reader import TraceReader

__all__ = ["complain_of_damage", "say"]

MOST_LINES = 5


def say(command: str, line: str) -> None:
    """Print a line; where it cannot be printed the command goes on unheard."""
    try:
        print(line, flush=True)
    except OSError as error:
        cannot_print(command, error)


def complain_of_damage(command: str, reader: TraceReader) -> int:
    """Say on stderr what a reader could not read, if anything; the exit status that this makes."""
    skipped = reader.skipped
    for one in skipped[:MOST_LINES]:
        print(
            f"{PROGRAM} {command}: {reader.path} is damaged: {one.size} bytes from byte {one.offset} on are skipped, "
            "and no lane is trusted from there until it is told of anew",
            file=sys.stderr,
        )
    if len(skipped) > MOST_LINES:
        print(f"{PROGRAM} {command}: and {len(skipped) - MOST_LINES} more such places", file=sys.stderr)
    return 1 if skipped else 0
