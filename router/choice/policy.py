"""The rules of choice by name, and those that look at load or at nothing. Pure; randomness is handed in."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random

from router.choice.candidate import Candidate, Choice, Circumstances, Lazily, Policy, Score, least
from router.choice.cut import Cut
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
        return Choice(index, Lazily(count, lambda place: _turns(float((place - index) % count))))


class UniformRandom:
    """Every lane with the same chance."""

    def choose(self, candidates: Sequence[Candidate], *, around: Circumstances, random: Random) -> Choice:
        """All scores are 0."""
        count = len(candidates)
        return Choice(random.randrange(count), Lazily(count, lambda _: Score(0.0, {})))


class LeastLoaded:
    """Fewest requests in flight; chance among equals."""

    cut = Cut(at_most=16, burden=lambda load, _: load.in_flight)

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


def _turns(away: float) -> Score:
    return Score(away, {"turns": away})


def _in_flight(candidates: Sequence[Candidate]) -> Sequence[Score]:
    def score(place: int) -> Score:
        load = float(candidates[place].in_flight)
        return Score(load, {"in_flight": load})

    return Lazily(len(candidates), score)


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
