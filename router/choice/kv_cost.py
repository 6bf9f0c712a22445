"""What sending a prompt to a lane costs, in seconds, term by term; and the rule that takes the lowest sum.

The sum estimates the time to first token there and adds what the choice costs others:

- ``queue``, ``running``: prefill that waits before this prompt, and the rest of the one being computed;
- ``elsewhere``: the same, and decodes, of requests that others sent to the engine, where it tells;
- ``prefill``: this prompt's uncached tokens;
- ``load_back``: bringing cached tokens from a slower tier to the GPU;
- ``behind``: what these tokens delay those that come after. A server with a backlog of u seconds that gets x more keeps
  its later requests waiting ``rate / (1 - busy) * x * (u + x / 2)`` seconds longer altogether: the first policy
  iteration step of size-aware dispatching to first-come-first-served servers (Hyytia, Penttinen, Aalto, 2012);
- ``work``: a second of prefill is a second in which no other work gets done, and as a rule it makes a copy that nobody
  will use. So it costs ``WORK_PRICE`` more, and ``LOAD_PRICE`` for each busy second that comes with a free one, as far
  as one; beyond that the queues say the rest;
- ``room``: a prompt pushes out as much as it brings, and whoever asks for that again has it computed once more. So it
  costs that time by the chance that somebody does; where nothing is dropped there is none;
- ``decode``: running answers slow each step, and slow down with it;
- ``crowded``: an almost full cache makes a new request wait for another one's end;
- ``spread``: a hot prefix gets another copy even where no queue asks for one. After ``SPREAD_REQUESTS`` recent requests
  for each lane that holds it, holding it counts for nothing, until there is one holder more;
- ``affinity``: the request's session was elsewhere last.

Others' seconds are counted at the fleet's mean speed: a slow replica's second is worth less, as less can be done in it.
Pure: no clock, no I/O.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random

import msgspec

from router.choice.candidate import Candidate, Choice, Circumstances, Lazily, Score, least
from router.choice.cut import Cut
from router.choice.load import LaneLoad

__all__ = ["TERMS", "KvAware", "Prices"]

WORK_PRICE = 1.0
LOAD_PRICE = 4.0
"""Seconds of waiting that saving a second of prefill is worth: always; and more, the busier a fleet is, up to half."""

DECODE_SECONDS = 0.002
"""What one running decode delays a new prompt by: about one shared step of a small batch."""

MAX_BUSY = 0.8
"""Busy shares above this count as this: the backlogs already say the rest, and the price must stay finite."""

TIE_SHARE = 0.04
TIE_SECONDS = 0.0002
"""Of the time to first token at the lowest cost: costs so close to it are equal, for no time is known better."""

LOAD_BACK_SHARE: Mapping[str, float] = {"GPU": 0.0, "CPU": 0.1, "DISK": 0.5}
OTHER_TIER_SHARE = 0.5
"""Time to bring a token back, as a share of computing it: stated, since no engine reports it. For an 8B model with
grouped heads, 128 KiB a token: 5 us over PCIe 4 and 40 us from one NVMe disk, against 60 us of prefill."""

CROWDED_FROM = 0.9
CROWDED_SECONDS = 1.0
"""Wait at a cache that is full of running requests; it rises to that from ``CROWDED_FROM`` on."""

SPREAD_REQUESTS = 24.0
HOLDER_SHARE = 0.9
"""Lanes with this share of the deepest match hold the same prefix."""

TERMS = (
    "queue",
    "running",
    "elsewhere",
    "prefill",
    "load_back",
    "behind",
    "work",
    "room",
    "decode",
    "crowded",
    "spread",
    "affinity",
)
TIMES = 4
"""The first so many are the time to first token of a prompt whose cached tokens are all on the GPU."""


class Prices(msgspec.Struct, frozen=True):
    """What others pay for each token that is computed, in seconds; ``behind`` also for each second of backlog.

    ``room`` is that of a cache of which all will be asked for again. ``hot`` is how many tokens of the deepest match
    count as if nobody held them.
    """

    behind: float
    work: float
    room: float
    hot: int


class KvAware:
    """Lowest cost in seconds; among near-equal costs the lane with the fewest requests, then chance."""

    cut = Cut(at_most=16, burden=LaneLoad.waiting_tokens, uncached_weight=1.0 + WORK_PRICE + LOAD_PRICE)

    def choose(self, candidates: Sequence[Candidate], *, around: Circumstances, random: Random) -> Choice:
        """See the module."""
        candidates = list(candidates)
        prices = _prices(candidates, around)
        terms = [self.terms(candidate, prices) for candidate in candidates]
        costs = [sum(each) for each in terms]
        lowest = min(costs)
        limit = lowest + TIE_SHARE * sum(terms[costs.index(lowest)][:TIMES]) + TIE_SECONDS
        near = [place for place, cost in enumerate(costs) if cost <= limit]
        chosen = near[0] if len(near) == 1 else least(near, lambda place: candidates[place].in_flight, random)
        return Choice(chosen, Lazily(len(candidates), lambda place: _score(terms[place])))

    def terms(self, lane: Candidate, prices: Prices) -> tuple[float, ...]:
        """What it costs to send a prompt there: seconds, in the order of ``TERMS``."""
        return _terms(lane, prices)


def _score(terms: Sequence[float]) -> Score:
    return Score(sum(terms), dict(zip(TERMS, terms, strict=True)))


def _terms(lane: Candidate, prices: Prices) -> tuple[float, ...]:
    pace, tokens = lane.seconds_per_token, lane.uncached_tokens
    queue, running = lane.waiting_tokens * pace, lane.running_tokens * pace
    elsewhere = lane.foreign_tokens * pace + lane.foreign_decoding * DECODE_SECONDS
    backlog = queue + running + elsewhere
    computing = _computing(lane, tokens, backlog, prices)
    hot = min(prices.hot, lane.held_tokens) if prices.hot else 0
    return (
        queue,
        running,
        elsewhere,
        *computing[:1],
        _load_back(lane.tiers) * pace if lane.tiers else 0.0,
        *computing[1:],
        lane.decoding * DECODE_SECONDS,
        _crowding(lane.cache_used) if lane.cache_used > CROWDED_FROM else 0.0,
        sum(_computing(lane, tokens + hot, backlog, prices)) - sum(computing) if hot else 0.0,
        lane.away_seconds,
    )


def _computing(lane: Candidate, tokens: float, backlog: float, prices: Prices) -> tuple[float, float, float, float]:
    """What so many tokens cost where so many seconds of work wait: prefill, behind, work, room."""
    seconds = tokens * lane.seconds_per_token
    behind = tokens * prices.behind * (backlog + seconds / 2)
    return seconds, behind, tokens * prices.work, tokens * prices.room * lane.regret


def _prices(candidates: Sequence[Candidate], around: Circumstances) -> Prices:
    pace = _fleet_pace(candidates)
    busy = min(max(around.busy, 0.0), MAX_BUSY)
    return Prices(
        behind=pace * around.rate / (1.0 - busy),
        work=pace * (WORK_PRICE + LOAD_PRICE * min(busy / (1.0 - busy), 1.0)),
        room=pace,
        hot=_hot_tokens(candidates, around.heat),
    )


def _fleet_pace(candidates: Sequence[Candidate]) -> float:
    """Seconds per token of a lane of mean speed."""
    return len(candidates) / sum([1.0 / candidate.seconds_per_token for candidate in candidates])


def _load_back(tiers: Mapping[str, int]) -> float:
    return sum(tokens * LOAD_BACK_SHARE.get(tier, OTHER_TIER_SHARE) for tier, tokens in tiers.items())


def _crowding(used: float) -> float:
    return CROWDED_SECONDS * min((used - CROWDED_FROM) / (1.0 - CROWDED_FROM), 1.0)


def _hot_tokens(candidates: Sequence[Candidate], heat: float) -> int:
    """Tokens of the deepest match that count as if nobody held them: all of them once its prefix is hot enough."""
    if heat < SPREAD_REQUESTS:
        return 0
    deepest = max(candidate.held_tokens for candidate in candidates)
    holders = sum(candidate.held_tokens >= HOLDER_SHARE * deepest for candidate in candidates)
    return deepest if heat >= SPREAD_REQUESTS * holders else 0
