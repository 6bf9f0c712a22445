"""Dynamo's published cost (ai-dynamo 1.6.1, KV router): blocks to compute, less a credit for overlap and decode.

    cost = (active prefill tokens + prompt tokens) / block size - credit * overlap blocks
           + distinct active blocks there once the request is, with credit 1

The lowest cost wins, chance decides among equals. Active prefill is what was left uncached of requests without a first
token. Blocks are active until their request has ended; blocks of one prefix count once. Output blocks are not tracked,
as by default. The overlap comes from our index, which says the same as theirs of the same events. In tokens here,
``block size`` times the cost, so that it is a whole number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random

from bench.fleet.policies.standings import Standings
from bench.fleet.rule import Surroundings
from bench.fleet.unit_index import BlockPrompt
from bench.workloads.request import Ask
from router.choice.load import EngineLoad

__all__ = ["CREDIT", "DynamoCost"]

CREDIT = 1


class DynamoTrip:
    """One request's share of its replica's number: uncached tokens until the first token, active blocks to the end."""

    def __init__(self, rule: DynamoCost, keys: Sequence[int], *, replica: int, uncached: int, overlap: int) -> None:
        self.replica = replica
        self.predicted_tokens = overlap
        self._rule = rule
        self._keys = keys
        self._uncached = uncached

    def first_token(self, *, now: float) -> None:
        """See `Trip`."""
        self._rule.costs.add(self.replica, -self._uncached)
        self._uncached = 0

    def finished(self, *, cached_tokens: int, now: float) -> None:
        """See `Trip`."""
        self._rule.release(self.replica, self._keys)

    def lost(self) -> None:
        """See `Trip`."""
        self.first_token(now=0.0)
        self._rule.release(self.replica, self._keys)


class DynamoCost:
    """``costs`` has each replica's part of the cost that does not depend on the prompt."""

    def __init__(self, around: Surroundings) -> None:
        self.costs = Standings(len(around.handles))
        self._index = around.index
        self._places = {handle: place for place, handle in enumerate(around.handles)}
        self._width = around.block_tokens
        self._random = Random(around.seed)
        self._active: dict[int, dict[int, int]] = {}  # key -> replica -> requests that use it

    def send(self, ask: Ask, *, now: float) -> DynamoTrip:
        """See `Rule`."""
        prompt = BlockPrompt(ask, block_tokens=self._width)
        keys = list(prompt.keys(width=self._width))
        overlap = {self._places[lane]: match.tokens for lane, match in self._index.holders(prompt).items()}
        replica = self._choose(overlap, self._shared(keys))
        held = overlap.get(replica, 0)
        self._take(replica, keys)
        self.costs.add(replica, ask.tokens - held)
        return DynamoTrip(self, keys, replica=replica, uncached=ask.tokens - held, overlap=held)

    def _choose(self, overlap: Mapping[int, int], shared: Mapping[int, int]) -> int:
        """Only replicas with overlap, or with active blocks of the prompt, differ by it; of the others the lowest."""
        special = [place for place in sorted(overlap.keys() | shared.keys()) if place in self.costs]
        ranked = [
            (self.costs[place] - CREDIT * overlap.get(place, 0) - shared.get(place, 0), place) for place in special
        ]
        if (other := self.costs.draw(self._random, but=set(special))) is not None:
            ranked.append(other)
        lowest = min(ranked)[0]
        return self._random.choice([place for cost, place in ranked if cost == lowest])

    def _shared(self, keys: Sequence[int]) -> dict[int, int]:
        """Tokens at the prompt's begin that are active on each replica already."""
        depths: dict[int, int] = {}
        alive = list(self._active.get(keys[0], ())) if keys else []
        for depth, key in enumerate(keys, start=1):
            users = self._active.get(key)
            alive = [place for place in alive if users is not None and place in users]
            if not alive:
                break
            depths.update(dict.fromkeys(alive, depth * self._width))
        return depths

    def _take(self, replica: int, keys: Sequence[int]) -> None:
        fresh = 0
        for key in keys:
            users = self._active.setdefault(key, {})
            fresh += replica not in users
            users[replica] = users.get(replica, 0) + 1
        self.costs.add(replica, fresh * self._width)

    def release(self, replica: int, keys: Sequence[int]) -> None:
        """A request has ended; its blocks are active no longer unless others use them."""
        gone = 0
        for key in keys:
            users = self._active[key]
            users[replica] -= 1
            if not users[replica]:
                del users[replica]
                gone += 1
                if not users:
                    del self._active[key]
        self.costs.add(replica, -gone * self._width)

    def left(self, replica: int) -> None:
        """See `Rule`."""
        self.costs.left(replica)

    def back(self, replica: int) -> None:
        """See `Rule`."""
        self.costs.back(replica)

    def reported(self, replica: int, load: EngineLoad, *, now: float) -> None:
        """Not looked at: the formula goes by the router's own books."""
