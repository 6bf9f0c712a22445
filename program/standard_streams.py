"""The three streams that every program may rely on, also where whoever started it left some of them closed."""

from __future__ import annotations

import os

__all__ = ["fill_standard_streams"]


def fill_standard_streams() -> None:
    """Open what we were started without: uvloop aborts the process when it closes a socket that took such a number."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest free number, which is this one
