"""What is timed of a batch of prompts that are answered together, whoever answers them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

__all__ = ["Clock", "Subject", "Timing"]

Clock = Callable[[], float]
"""Seconds: those of a wall, or those in which this process computed, which others on the machine do not stretch."""


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of a `Clock` until every prompt had its first token, and from there until all had their last.

    ``cached_tokens`` are prompt tokens that were not computed.
    """

    prefill: float
    decode: float
    cached_tokens: int = 0


class Subject(Protocol):
    """Somebody who answers prompts."""

    @property
    def name(self) -> str:
        """As figures call it."""
        ...

    def play(self, prompts: Sequence[Sequence[int]], *, new_tokens: int) -> Timing:
        """Answer all ``prompts`` (of one length) at once, greedily, with exactly ``new_tokens`` each."""
        ...
