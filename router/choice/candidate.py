"""What a rule of choice is given and what it gives back: values, one for each lane."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from random import Random
from typing import Protocol, TypeVar, overload, runtime_checkable

import msgspec

from router.choice.cut import Cut

__all__ = ["Candidate", "Choice", "Circumstances", "Lazily", "Policy", "Score", "Selective", "least"]

T = TypeVar("T")


class Candidate(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One lane as a rule sees it.

    Tokens are prompt tokens. ``held_tokens`` of this prompt are cached there or about to be, ``uncached_tokens`` are
    the rest; ``tiers`` says how many of the held ones lie outside the GPU. ``waiting_tokens`` and ``running_tokens``
    belong to requests sent before. ``foreign_*`` and ``cache_used`` are the engine's own account of what others sent.
    ``regret`` is the chance that what a prompt pushes out of its cache will be asked for again.
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
    regret: float = 0.0
    seconds_per_token: float
    away_seconds: float = 0.0


class Circumstances(msgspec.Struct, frozen=True):
    """``busy``: the fleet's busy share; ``rate``: requests a second and lane, those that make it busy.

    ``heat``: recent requests for the prefix that the deepest match covers.
    """

    busy: float = 0.0
    rate: float = 0.0
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


@runtime_checkable
class Selective(Policy, Protocol):
    """A rule that need not see every lane of a large fleet."""

    cut: Cut


class Lazily(Sequence[T]):
    """``count`` items, each made once when it is first looked at."""

    def __init__(self, count: int, make: Callable[[int], T]) -> None:
        self._count = count
        self._make = make
        self._made: dict[int, T] = {}

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[T]:
        return map(self.__getitem__, range(self._count))

    @overload
    def __getitem__(self, place: int) -> T: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[T]: ...
    def __getitem__(self, place: int | slice) -> T | Sequence[T]:
        if isinstance(place, slice):
            return [self[each] for each in range(*place.indices(self._count))]
        if not 0 <= place < self._count:
            raise IndexError(f"place {place} of {self._count}")
        if place not in self._made:
            self._made[place] = self._make(place)
        return self._made[place]


def least(places: Iterable[int], load: Callable[[int], int], random: Random) -> int:
    """The place with the least load; chance among equals."""
    loads = [(load(place), place) for place in places]
    lowest = min(loads)[0]
    return random.choice([place for amount, place in loads if amount == lowest])
