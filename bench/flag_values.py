"""Numbers that commands take as flags, within their bounds; argparse names the flag in front of what they say."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable

__all__ = ["above", "at_least", "between"]


def at_least(low: int) -> Callable[[str], int]:
    """Whole numbers from ``low`` on."""

    def read(text: str) -> int:
        if (value := int(text)) < low:
            raise argparse.ArgumentTypeError(f"must be at least {low}, got {value}")
        return value

    read.__name__ = "int"  # what argparse calls it
    return read


def above(low: float) -> Callable[[str], float]:
    """Finite numbers greater than ``low``."""
    return between(low, math.inf)


def between(low: float, high: float, *, low_too: bool = False) -> Callable[[str], float]:
    """Numbers greater than ``low``, or equal to it where that is ``low_too``, and smaller than ``high``."""

    def read(text: str) -> float:
        value = float(text)
        if not (low < value < high or (low_too and value == low)):
            bound = f"{'at least' if low_too else 'above'} {low:g}{_and_below(high)}"
            raise argparse.ArgumentTypeError(f"must be {bound}, got {value:g}")
        return value

    read.__name__ = "float"
    return read


def _and_below(high: float) -> str:
    return "" if math.isinf(high) else f" and below {high:g}"
