"""What a choice needs of a lane, and what a router sees of a prompt there: what is held now and in a moment."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import msgspec

from router.choice.load import LaneLoad
from router.choice.memory import Memory, mark_step
from router.choice.speed import ReplicaSpeed
from router.intake.index import LaneHandle, Match
from router.prompt import Prompt

__all__ = ["LaneState", "Sight", "prefix_key"]


class LaneState(Protocol):
    """What a choice needs of a lane."""

    url: str
    dp_rank: int
    handle: LaneHandle
    load: LaneLoad
    recent: Memory
    speed: ReplicaSpeed

    @property
    def width(self) -> int | None:
        """Block width in tokens."""
        ...


class Sight(msgspec.Struct, frozen=True, gc=False):
    """``match`` is what the lane holds of a prompt now, ``held`` what it will when the prompt's turn comes."""

    width: int | None
    match: Match
    held: int


def prefix_key(prompt: Prompt, sights: Iterable[Sight]) -> int | None:
    """The key at the last mark that the deepest match reaches: what names the prefix whatever follows it."""
    deepest = max(sights, key=lambda sight: sight.held)
    if deepest.width is None:
        return None
    step = mark_step(deepest.width)
    blocks = deepest.held // deepest.width // step * step
    return prompt.keys(width=deepest.width)[blocks - 1] if blocks else None
