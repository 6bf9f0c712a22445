"""Lines that a command prints while it goes on with something more important."""

from __future__ import annotations

from router.replay import cannot_print

__all__ = ["say"]


def say(command: str, line: str) -> None:
    """Print a line; where it cannot be printed the command goes on unheard."""
    try:
        print(line, flush=True)
    except OSError as error:
        cannot_print(command, error)
