"""What a rule of choice is given and what it gives back: values, one for each lane."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from random import Random
from typing import Protocol

import msgspec

__all__ = ["Candidate", "Choice", "Circumstances", "Policy", "Score", "least"]


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """One lane as a rule sees it.

    Tokens are prompt tokens. ``held_tokens`` of this prompt are cached there or about to be, ``uncached_tokens`` are
    the rest; ``tiers`` says how many of the held ones lie outside the GPU. ``waiting_tokens`` and ``running_tokens``
    belong to requests sent before. ``foreign_*`` and ``cache_used`` are the engine's own account of what others sent.
    ``seconds_per_token`` is its prefill speed, inverted; ``away_seconds`` what a session loses by coming here.
    """

    held_tokens: int
    uncached_tokens: int
    tiers: Mapping[str, int] = {}
    waiting_tokens: float = 0.0
    running_tokens: float = 0.0
    decoding: int = 0
    in_flight: int = 0
    foreign_tokens: float = 0.0
    foreign_decoding: int = 0
    cache_used: float = 0.0
    seconds_per_token: float
    away_seconds: float = 0.0


class Circumstances(msgspec.Struct, frozen=True):
    """``busy``: the fleet's busy share. ``heat``: recent requests for the prefix that the deepest match covers."""

    busy: float = 0.0
    heat: float = 0.0


class Score(msgspec.Struct, frozen=True):
    """What a rule thinks of one lane; lower is better. ``cost`` is the sum of the named ``terms``."""

    cost: float
    terms: Mapping[str, float]


class Choice(msgspec.Struct, frozen=True):
    """The chosen candidate's position, and every candidate's score in the order given."""

    index: int
    scores: Sequence[Score]


class Policy(Protocol):
    """A rule. It may keep a turn counter; everything else it needs is in the call."""

    def choose(self, candidates: Sequence[Candidate], *, around: Circumstances, random: Random) -> Choice:
        """Pick one of at least one candidates."""
        ...


def least(places: Iterable[int], load: Callable[[int], int], random: Random) -> int:
    """The place with the least load; chance among equals."""
    loads = [(load(place), place) for place in places]
    lowest = min(loads)[0]
    return random.choice([place for amount, place in loads if amount == lowest])
