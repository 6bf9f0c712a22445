"""SGLang's cache-aware rule (its router, which became the Shepherd Model Gateway), without events.

While loads are uneven, the shortest queue; else the replica that was last sent most of the prompt, if that is more than
``CACHE_THRESHOLD`` of it; else the replica with the smallest tree. Loads are requests in flight, and uneven where they
are apart by more than ``BALANCE_ABS`` and by more than a factor of ``BALANCE_REL``. The tree is the router's own, of
what it sent, as for workers that publish no events; here its nodes are blocks, where the router's are characters or
tokens. It is bounded for each replica by ``MAX_TREE_TOKENS``, at once, where the router looks every two minutes.
"""

from __future__ import annotations

from random import Random

from bench.fleet.policies.sent_tree import SentTree
from bench.fleet.policies.standings import Standings
from bench.fleet.rule import Surroundings
from bench.fleet.unit_index import BlockPrompt
from bench.workloads.request import Ask
from router.choice.load import EngineLoad

__all__ = ["SglangCacheAware"]

CACHE_THRESHOLD = 0.5
BALANCE_ABS = 64
BALANCE_REL = 1.5
MAX_TREE_TOKENS = 2**26


class SglangTrip:
    """One request in flight."""

    def __init__(self, loads: Standings, *, replica: int, predicted_tokens: int) -> None:
        self.replica = replica
        self.predicted_tokens = predicted_tokens
        self._loads = loads

    def first_token(self, *, now: float) -> None:
        """Changes nothing: a request counts until it has ended."""

    def finished(self, *, cached_tokens: int, now: float) -> None:
        """See `Trip`."""
        self._loads.add(self.replica, -1)

    def lost(self) -> None:
        """See `Trip`."""
        self._loads.add(self.replica, -1)


class SglangCacheAware:
    """See the module."""

    def __init__(self, around: Surroundings) -> None:
        replicas = len(around.handles)
        self._width = around.block_tokens
        self._random = Random(around.seed)
        self._loads = Standings(replicas)
        self._sizes = Standings(replicas)
        self._tree = SentTree(replicas, room=max(MAX_TREE_TOKENS // around.block_tokens, 1))

    def send(self, ask: Ask, *, now: float) -> SglangTrip:
        """See `Rule`."""
        keys = list(BlockPrompt(ask, block_tokens=self._width).keys(width=self._width))
        blocks, owner = self._tree.match(keys)
        matched = blocks * self._width
        if self._uneven:
            replica = self._least(self._loads)
        elif owner is not None and owner in self._loads and matched > CACHE_THRESHOLD * ask.tokens:
            replica = owner
        else:
            replica = self._least(self._sizes)
        self._tree.insert(replica, keys)
        self._sizes.add(replica, self._tree.size(replica) - self._sizes[replica])
        self._loads.add(replica, 1)
        return SglangTrip(self._loads, replica=replica, predicted_tokens=matched if replica == owner else 0)

    @property
    def _uneven(self) -> bool:
        least, most = self._loads.least, self._loads.most
        return most - least > BALANCE_ABS and most > BALANCE_REL * least

    def _least(self, standings: Standings) -> int:
        drawn = standings.draw(self._random)
        assert drawn is not None, "a rule is asked while a replica is there"
        return drawn[1]

    def left(self, replica: int) -> None:
        """See `Rule`."""
        self._loads.left(replica)
        self._sizes.left(replica)
        self._tree.clear(replica)

    def back(self, replica: int) -> None:
        """See `Rule`."""
        self._sizes.add(replica, -self._sizes[replica])
        self._loads.back(replica)
        self._sizes.back(replica)

    def reported(self, replica: int, load: EngineLoad, *, now: float) -> None:
        """Not looked at: the rule goes by the router's own books."""
