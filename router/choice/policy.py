"""The rules of choice by name, and those that look at load or at nothing. Pure; randomness is handed in."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from random import Random

from router.choice.candidate import Candidate, Choice, Circumstances, Policy, Score, least
from router.choice.kv_cost import KvAware
from router.choice.memory import Memory
from router.choice.recent import RecentPrompts
from router.choice.routed import RoutedPrompts

__all__ = ["APPROX", "POLICIES", "memory_of"]

APPROX = "approx"
"""``kv``, but believing that a lane holds what was sent to it, not what its events say."""


class RoundRobin:
    """Each lane in turn, whatever it holds."""

    def __init__(self) -> None:
        self._turn = 0

    def choose(self, candidates: Sequence[Candidate], *, around: Circumstances, random: Random) -> Choice:
        """``cost`` is how many turns away a lane is."""
        count = len(candidates)
        index = self._turn % count
        self._turn += 1
        turns = [float((place - index) % count) for place in range(count)]
        return Choice(index, [Score(away, {"turns": away}) for away in turns])


class UniformRandom:
    """Every lane with the same chance."""

    def choose(self, candidates: Sequence[Candidate], *, around: Circumstances, random: Random) -> Choice:
        """All scores are 0."""
        return Choice(random.randrange(len(candidates)), [Score(0.0, {}) for _ in candidates])


class LeastLoaded:
    """Fewest requests in flight; chance among equals."""

    def choose(self, candidates: Sequence[Candidate], *, around: Circumstances, random: Random) -> Choice:
        """``cost`` is the number of requests in flight."""
        index = least(range(len(candidates)), lambda place: candidates[place].in_flight, random)
        return Choice(index, _in_flight(candidates))


class PowerOfTwo:
    """The less loaded of two lanes drawn at random."""

    def choose(self, candidates: Sequence[Candidate], *, around: Circumstances, random: Random) -> Choice:
        """``cost`` is the number of requests in flight; the draw decides who is compared."""
        drawn = random.sample(range(len(candidates)), min(2, len(candidates)))
        index = min(drawn, key=lambda place: candidates[place].in_flight)  # equal: the one drawn first, at random
        return Choice(index, _in_flight(candidates))


def _in_flight(candidates: Iterable[Candidate]) -> list[Score]:
    loads = [float(candidate.in_flight) for candidate in candidates]
    return [Score(load, {"in_flight": load}) for load in loads]


POLICIES: Mapping[str, Callable[[], Policy]] = {
    "kv": KvAware,
    APPROX: KvAware,
    "round_robin": RoundRobin,
    "random": UniformRandom,
    "least_loaded": LeastLoaded,
    "power_of_two": PowerOfTwo,
}


def memory_of(policy: str) -> Memory:
    """A lane's memory of what was sent to it, as far as the policy of that name needs it."""
    return RoutedPrompts() if policy == APPROX else RecentPrompts()
