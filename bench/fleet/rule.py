"""What a simulated router asks of a rule of choice, and what it hands to one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from bench.fleet.unit_index import UnitIndex
from bench.workloads.request import Ask
from router.choice.load import EngineLoad
from router.intake.index import LaneHandle

__all__ = ["Rule", "Surroundings", "Trip"]


class Surroundings(msgspec.Struct, frozen=True, kw_only=True):
    """What one router knows of its fleet: ``handles`` are the replicas' lanes in the index, in order.

    ``blocks`` is what a replica's cache holds, for rules that must be told; ``seed`` is this router's own.
    """

    index: UnitIndex
    handles: Sequence[LaneHandle]
    blocks: int
    block_tokens: int
    seed: int


class Trip(Protocol):
    """One request on its way, as the router that sent it keeps it; times in seconds."""

    replica: int
    predicted_tokens: int

    def first_token(self, *, now: float) -> None:
        """The prompt is computed."""
        ...

    def finished(self, *, cached_tokens: int, now: float) -> None:
        """The answer is complete; the engine says how many prompt tokens it had found."""
        ...

    def lost(self) -> None:
        """The engine is gone."""
        ...


class Rule(Protocol):
    """One router's rule, with all that it remembers."""

    def send(self, ask: Ask, *, now: float) -> Trip:
        """Choose a replica that is there, and take the request into account."""
        ...

    def left(self, replica: int) -> None:
        """A replica is gone, and whatever it held."""
        ...

    def back(self, replica: int) -> None:
        """A replica is there again, empty."""
        ...

    def reported(self, replica: int, load: EngineLoad, *, now: float) -> None:
        """What an engine says of itself."""
        ...
