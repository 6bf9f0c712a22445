"""What sending a prompt to a lane costs, in seconds, term by term; and the rule that takes the lowest sum.

The sum estimates the time to first token there and adds what the choice costs others:

- ``queue``, ``running``: prefill that waits before this prompt, and the rest of the one being computed;
- ``elsewhere``: the same, and decodes, of requests that others sent to the engine, where it tells;
- ``prefill``: this prompt's uncached tokens;
- ``load_back``: bringing cached tokens from a slower tier to the GPU;
- ``others``: what recomputing costs everybody else. It occupies a server others wait for and takes cache that others
  need, so it is priced by load: ``beta = 1 + rho / (1 - rho)``, rho being the fleet's busy share. On public traces that
  had the lowest time to first token of the rules tried, at a hit rate within 3 % of the best. A token costs the same
  everywhere, at the fleet's mean speed: a slow replica's second is worth less, as less can be done in it;
- ``decode``: running answers slow each step, and slow down with it;
- ``crowded``: an almost full cache makes a new request wait for another one's end;
- ``spread``: a hot prefix is worth more copies than one. It takes the advantage of holding the prefix away once there
  are ``SPREAD_REQUESTS`` recent requests for each lane that holds it; the next copy gives it back;
- ``affinity``: the request's session was elsewhere last.

Pure: no clock, no I/O.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random

from router.choice.candidate import Candidate, Choice, Circumstances, Score, least

__all__ = ["KvAware", "recomputation_price"]

DECODE_SECONDS = 0.002
"""What one running decode delays a new prompt by: about one shared step of a small batch."""

MAX_BUSY = 0.8
"""Busy shares above this count as this: the queue term already says the rest, and the price must stay finite."""

TIE_SHARE = 0.1
TIE_SECONDS = 0.0002
"""Costs this close to the lowest are equal: learnt speeds are not known better than that."""

LOAD_BACK_SHARE: Mapping[str, float] = {"GPU": 0.0, "CPU": 0.1, "DISK": 0.5}
OTHER_TIER_SHARE = 0.5
"""Time to bring a token back, as a share of computing it: stated, since no engine reports it. For an 8B model with
grouped heads, 128 KiB a token: 5 us over PCIe 4 and 40 us from one NVMe disk, against 60 us of prefill."""

CROWDED_FROM = 0.9
CROWDED_SECONDS = 1.0
"""Wait at a cache that is full of running requests; it rises to that from ``CROWDED_FROM`` on."""

SPREAD_REQUESTS = 32.0
SPREAD_STEEPNESS = 4
HOLDER_SHARE = 0.9
"""Lanes with this share of the deepest match hold the same prefix."""


def recomputation_price(busy: float) -> float:
    """What others pay for each second of prefill, in seconds."""
    share = min(max(busy, 0.0), MAX_BUSY)
    return 1.0 + share / (1.0 - share)


class KvAware:
    """Lowest cost in seconds; among near-equal costs the lane with the fewest requests, then chance."""

    def choose(self, candidates: Sequence[Candidate], *, around: Circumstances, random: Random) -> Choice:
        """See the module."""
        price = recomputation_price(around.busy) * _fleet_pace(candidates)
        hot = _hot_tokens(candidates, around.heat)
        scores = [_seconds(candidate, price, hot) for candidate in candidates]
        limit = min(score.cost for score in scores) * (1.0 + TIE_SHARE) + TIE_SECONDS
        near = [place for place, score in enumerate(scores) if score.cost <= limit]
        return Choice(least(near, lambda place: candidates[place].in_flight, random), scores)


def _seconds(lane: Candidate, price: float, hot_tokens: float) -> Score:
    """``price`` in seconds per recomputed token."""
    pace = lane.seconds_per_token
    terms = {
        "queue": lane.waiting_tokens * pace,
        "running": lane.running_tokens * pace,
        "elsewhere": lane.foreign_tokens * pace + lane.foreign_decoding * DECODE_SECONDS,
        "prefill": lane.uncached_tokens * pace,
        "load_back": _load_back(lane.tiers) * pace if lane.tiers else 0.0,
        "others": lane.uncached_tokens * price,
        "decode": lane.decoding * DECODE_SECONDS,
        "crowded": _crowding(lane.cache_used) if lane.cache_used > CROWDED_FROM else 0.0,
        "spread": min(hot_tokens, lane.held_tokens) * (pace + price),
        "affinity": lane.away_seconds,
    }
    return Score(sum(terms.values()), terms)


def _fleet_pace(candidates: Sequence[Candidate]) -> float:
    """Seconds per token of a lane of mean speed."""
    return len(candidates) / sum(1.0 / candidate.seconds_per_token for candidate in candidates)


def _load_back(tiers: Mapping[str, int]) -> float:
    return sum(tokens * LOAD_BACK_SHARE.get(tier, OTHER_TIER_SHARE) for tier, tokens in tiers.items())


def _crowding(used: float) -> float:
    return CROWDED_SECONDS * min((used - CROWDED_FROM) / (1.0 - CROWDED_FROM), 1.0)


def _hot_tokens(candidates: Sequence[Candidate], heat: float) -> float:
    """Tokens of the deepest match that count as if nobody held them: all of them once its prefix is hot enough."""
    deepest = max(candidate.held_tokens for candidate in candidates)
    if not deepest or heat <= 1.0:
        return 0.0
    holders = sum(candidate.held_tokens >= HOLDER_SHARE * deepest for candidate in candidates)
    return deepest * min(heat / (SPREAD_REQUESTS * holders), 1.0) ** SPREAD_STEEPNESS
