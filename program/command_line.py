"""How a program says that it makes no sense of its command line, or cannot go on: one line on stderr, and a status."""

from __future__ import annotations

import argparse
import sys
from typing import NoReturn

__all__ = ["BAD_FLAGS_STATUS", "LineParser", "complain"]

BAD_FLAGS_STATUS = 2
"""argparse's own, and that of most programs."""


def complain(program: str, message: str, *, status: int) -> int:
    """Print ``message``, whatever it holds, as one line; the status to end with."""
    print(f"{program}: error: {' '.join(message.split())}", file=sys.stderr)
    return status


class LineParser(argparse.ArgumentParser):
    """Ends with one line that says what is wrong, and with status 2, where argparse would print its usage too."""

    @property
    def program(self) -> str:
        """Who complains."""
        return self.prog

    def error(self, message: str) -> NoReturn:
        """Complain on stderr and exit."""
        sys.exit(complain(self.program, message, status=BAD_FLAGS_STATUS))
