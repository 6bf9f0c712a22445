"""What a router sees of a prompt on each lane: what is held there, and what will be in a moment.

Without an index (``approx``) the memory is all there is: what was sent to a lane counts as held and as predicted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

import msgspec

from router.choice.load import LaneLoad
from router.choice.memory import MARK_TOKENS, Memory, mark_step
from router.choice.speed import ReplicaSpeed
from router.intake.index import Holding, LaneHandle, Match
from router.prompt import Prompt

__all__ = ["LaneState", "Sight", "by_events", "by_memory", "prefix_key", "unheld_key"]


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


L = TypeVar("L", bound=LaneState)


class Sight(msgspec.Struct, frozen=True, gc=False):
    """``match`` is what the lane holds of a prompt now, ``held`` what it will when the prompt's turn comes."""

    width: int | None
    match: Match
    held: int


def by_events(prompt: Prompt, lane: L, match: Match, *, lasts: Callable[[L, float], float], now: float) -> Sight:
    """By what the index says, and what was just sent.

    ``lasts``: the share of what a lane holds that what waits there at a time will leave.
    """
    width, held = lane.width, match.tokens
    if held and lane.load.queued_tokens:
        held = int(held * lasts(lane, now))
    if width is not None and len(lane.recent):
        held = max(held, lane.recent.match(prompt.keys(width=width), width=width, now=now, known=held))
    return Sight(width, match, held)


def by_memory(prompt: Prompt, lane: LaneState, *, now: float) -> Sight:
    """By what was sent alone. A lane's width may be unknown without events; any will do then, since nobody else's keys
    are compared."""
    width = lane.width or MARK_TOKENS
    held = lane.recent.match(prompt.keys(width=width), width=width, now=now)
    return Sight(width, Match(held, {"GPU": held} if held else {}), held)


def prefix_key(prompt: Prompt, sights: Sequence[Sight]) -> int | None:
    """The key at the last mark that the deepest match reaches: what names the prefix whatever follows it."""
    deepest = max(sights, key=lambda sight: sight.held)
    if deepest.width is None:
        return None
    step = mark_step(deepest.width)
    blocks = deepest.held // deepest.width // step * step
    return prompt.keys(width=deepest.width)[blocks - 1] if blocks else None


def unheld_key(prompt: Prompt, holdings: Sequence[Holding], *, width: int) -> int | None:
    """The key at the first mark beyond what anybody holds: siblings of a new prefix have it in common."""
    keys, step = prompt.keys(width=width), mark_step(width)
    deepest = max((holding.tokens for holding in holdings), default=0) // width
    place = (deepest // step + 1) * step - 1
    return keys[place] if place < len(keys) else None
