"""What a router sees of a prompt on each lane: what is held there, and what will be in a moment.

Without an index (``approx``) the memory is all there is: what was sent to a lane counts as held and as predicted.
In a large fleet a prompt is looked at closely on a few lanes only: those where little waits and little is to compute.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from heapq import nsmallest
from random import Random
from typing import Protocol, TypeVar

import msgspec

from router.choice.candidate import Lazily, Selective
from router.choice.load import LaneLoad
from router.choice.memory import MARK_TOKENS, Memory, mark_step
from router.choice.speed import ReplicaSpeed
from router.intake.index import LaneHandle, Match
from router.prompt import Prompt

__all__ = ["LaneState", "Matches", "Sight", "by_events", "by_memory", "nearest", "prefix_key", "unseen"]

NO_MATCH = Match(tokens=0, tiers={})
Matches = Mapping[LaneHandle, Match]


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


def unseen(lanes: Sequence[LaneState]) -> Sequence[Sight]:
    """Of a prompt whose token ids nobody knows."""
    return Lazily(len(lanes), lambda place: Sight(lanes[place].width, NO_MATCH, 0))


def by_events(
    prompt: Prompt, lanes: Sequence[L], matches: Matches, *, lasts: Callable[[L], float], now: float
) -> Sequence[Sight]:
    """By what the index says, and what was just sent.

    ``lasts``: the share of what a lane holds that what waits there will leave.
    """
    return [_by_events(lane, prompt, matches.get(lane.handle, NO_MATCH), lasts, now) for lane in lanes]


def by_memory(prompt: Prompt, lanes: Sequence[LaneState], *, now: float) -> Sequence[Sight]:
    """By what was sent alone."""
    return [_by_memory(lane, prompt, now) for lane in lanes]


def _by_events(lane: L, prompt: Prompt, match: Match, lasts: Callable[[L], float], now: float) -> Sight:
    width, held = lane.width, match.tokens
    if held and lane.load.queued_tokens:
        held = int(held * lasts(lane))
    if width is not None and len(lane.recent):
        held = max(held, lane.recent.match(prompt.keys(width=width), width=width, now=now, known=held))
    return Sight(width, match, held)


def _by_memory(lane: LaneState, prompt: Prompt, now: float) -> Sight:
    """A lane's width may be unknown without events; any will do then, since nobody else's keys are compared."""
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


def nearest(
    rule: Selective,
    lanes: Sequence[L],
    matches: Matches,
    prompt: Prompt | None,
    *,
    prompt_tokens: int,
    now: float,
    random: Random,
) -> Sequence[L]:
    """The lanes that a rule of this kind would look at, by a rough cost; chance among equals.

    A lane that is sent what nobody holds yet is taken for a holder of all of it.
    """
    start = random.randrange(len(lanes))
    turned = [*lanes[start:], *lanes[:start]]
    sent = _sent_beyond(prompt, turned, matches)
    weight = rule.uncached_weight
    costs = [
        (
            lane.load.waiting_tokens(now)
            + weight * (0 if lane.handle in sent else prompt_tokens - matches.get(lane.handle, NO_MATCH).tokens)
        )
        * lane.speed.pace(now)
        for lane in turned
    ]
    return [turned[place] for place in nsmallest(rule.at_most, range(len(turned)), key=costs.__getitem__)]


def _sent_beyond(prompt: Prompt | None, lanes: Sequence[LaneState], matches: Matches) -> set[LaneHandle]:
    """Lanes that were lately sent more of a prompt than anybody holds."""
    width = lanes[0].width
    if prompt is None or width is None:
        return set()
    keys, step = prompt.keys(width=width), mark_step(width)
    deepest = max((match.tokens for match in matches.values()), default=0) // width
    place = (deepest // step + 1) * step - 1
    if place >= len(keys):
        return set()
    key = keys[place]
    return {lane.handle for lane in lanes if key in lane.recent}
