"""Choosing a lane: five rules, from values only. No clock, no I/O; randomness is handed in.

``kv`` is a cost in seconds: the wait behind prompts booked before, this prompt's own prefill, what its recomputation
costs others, and the pressure of running decodes. Recomputing tokens that some replica already holds occupies a server
others wait for and takes cache that others need; both grow with load, so that part is priced by
``beta = 1 + rho / (1 - rho)``, rho being the fleet's busy share (measured on public traces: lowest time to first token
of the rules tried, at a hit rate within 3 % of the best).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from random import Random
from typing import Protocol

import msgspec

__all__ = ["POLICIES", "Candidate", "Choice", "Policy", "Score", "recomputation_price"]

DECODE_SECONDS = 0.002
"""What one running decode delays a new prompt by: about one shared step of a small batch."""

MAX_BUSY = 0.8
"""Busy shares above this count as this: the queue term already says the rest, and the price must stay finite."""

TIE_SHARE = 0.1
TIE_SECONDS = 0.0002
"""Costs this close to the lowest are equal: learnt speeds are not known better than that."""


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """One lane as a rule sees it. Tokens are prompt tokens; ``seconds_per_token`` is its prefill speed, inverted."""

    matched_tokens: int
    uncached_tokens: int
    queued_tokens: int
    decoding: int
    in_flight: int
    seconds_per_token: float


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

    def choose(self, candidates: Sequence[Candidate], *, busy: float, random: Random) -> Choice:
        """Pick one of at least one candidates; ``busy`` is the fleet's busy share in [0, 1]."""
        ...


def recomputation_price(busy: float) -> float:
    """What others pay for each second of prefill, in seconds."""
    share = min(max(busy, 0.0), MAX_BUSY)
    return 1.0 + share / (1.0 - share)


class KvAware:
    """Lowest cost in seconds; among near-equal costs the lane with the fewest requests, then chance."""

    def choose(self, candidates: Sequence[Candidate], *, busy: float, random: Random) -> Choice:
        """See the module."""
        price = recomputation_price(busy)
        scores = [_seconds(candidate, price) for candidate in candidates]
        limit = min(score.cost for score in scores) * (1.0 + TIE_SHARE) + TIE_SECONDS
        near = [place for place, score in enumerate(scores) if score.cost <= limit]
        return Choice(_least(near, lambda place: candidates[place].in_flight, random), scores)


def _seconds(candidate: Candidate, price: float) -> Score:
    pace = candidate.seconds_per_token
    queue = candidate.queued_tokens * pace
    prefill = candidate.uncached_tokens * pace
    others = price * prefill
    decode = candidate.decoding * DECODE_SECONDS
    terms = {"queue": queue, "prefill": prefill, "others": others, "decode": decode}
    return Score(queue + prefill + others + decode, terms)


class RoundRobin:
    """Each lane in turn, whatever it holds."""

    def __init__(self) -> None:
        self._turn = 0

    def choose(self, candidates: Sequence[Candidate], *, busy: float, random: Random) -> Choice:
        """``cost`` is how many turns away a lane is."""
        count = len(candidates)
        index = self._turn % count
        self._turn += 1
        turns = [float((place - index) % count) for place in range(count)]
        return Choice(index, [Score(away, {"turns": away}) for away in turns])


class UniformRandom:
    """Every lane with the same chance."""

    def choose(self, candidates: Sequence[Candidate], *, busy: float, random: Random) -> Choice:
        """All scores are 0."""
        return Choice(random.randrange(len(candidates)), [Score(0.0, {}) for _ in candidates])


class LeastLoaded:
    """Fewest requests in flight; chance among equals."""

    def choose(self, candidates: Sequence[Candidate], *, busy: float, random: Random) -> Choice:
        """``cost`` is the number of requests in flight."""
        index = _least(range(len(candidates)), lambda place: candidates[place].in_flight, random)
        return Choice(index, _in_flight(candidates))


class PowerOfTwo:
    """The less loaded of two lanes drawn at random."""

    def choose(self, candidates: Sequence[Candidate], *, busy: float, random: Random) -> Choice:
        """``cost`` is the number of requests in flight; the draw decides who is compared."""
        drawn = random.sample(range(len(candidates)), min(2, len(candidates)))
        index = min(drawn, key=lambda place: candidates[place].in_flight)  # equal: the one drawn first, at random
        return Choice(index, _in_flight(candidates))


def _in_flight(candidates: Iterable[Candidate]) -> list[Score]:
    loads = [float(candidate.in_flight) for candidate in candidates]
    return [Score(load, {"in_flight": load}) for load in loads]


def _least(places: Iterable[int], load: Callable[[int], int], random: Random) -> int:
    loads = [(load(place), place) for place in places]
    lowest = min(loads)[0]
    return random.choice([place for amount, place in loads if amount == lowest])


POLICIES: Mapping[str, Callable[[], Policy]] = {
    "kv": KvAware,
    "round_robin": RoundRobin,
    "random": UniformRandom,
    "least_loaded": LeastLoaded,
    "power_of_two": PowerOfTwo,
}
