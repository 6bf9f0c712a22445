"""The few lanes of a large fleet that are worth a closer look for a prompt: by a rough cost, and without asking all.

The rough cost is a rule's (`Cut`): what a lane has to do, and what of the prompt is not held there. Lanes that hold
none of it are equal but for what they have to do, and so are those that hold as much of it, so the least burdened of
each will do. They are found in the lanes' order, or by looking at each of them where they are few.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Sequence
from functools import partial
from operator import itemgetter
from random import Random
from typing import Generic, TypeVar

from router.choice.order import Order
from router.choice.sight import LaneState
from router.intake.index import EVERYONE, BlockIndex, Holding

__all__ = ["Nearest"]

L = TypeVar("L", bound=LaneState)


class Nearest(Generic[L]):
    """One search among the lanes of an order, for a prompt of ``prompt_tokens``."""

    def __init__(self, order: Order[L], *, prompt_tokens: int, random: Random) -> None:
        self._order = order
        self._at_most, self._weight = order.cut.at_most, order.cut.uncached_weight
        self._prompt_tokens = prompt_tokens
        self._random = random
        self._costs: list[tuple[float, L]] = []

    def by_burden(self) -> list[L]:
        """Where nothing is held, or that does not count."""
        self._walk(0, lambda _: True)
        return self._lanes

    def by_holdings(
        self, index: BlockIndex | None, holdings: Sequence[Holding], sent: Iterable[tuple[float, L]]
    ) -> list[L]:
        """By what the index says is held; ``sent``: lanes with their costs, as if they held all of the prompt."""
        self._costs += sent
        seen, crowd = {lane for _, lane in self._costs}, 0
        for holding in holdings:
            assert index is not None, "what is held is known from an index"
            if self._few(holding.lanes.bit_count()):
                found = self._order.of(index.lanes_of(holding.lanes), self._extra(holding.tokens))
                self._costs += [(cost, lane) for cost, lane in found if lane not in seen]
            else:
                crowd |= holding.lanes
        seen.update(lane for _, lane in self._costs)
        self._cut()
        for holding in holdings:
            if holding.lanes & crowd:
                self._walk(holding.tokens, partial(_fits, index, holding.lanes, seen))
        self._walk(0, partial(_fits, index, ~crowd, seen))
        return self._lanes

    def _few(self, count: int) -> bool:
        """Whether looking at each is cheaper than coming by ``at_most`` of them on a walk along the order."""
        return count * count <= self._at_most * len(self._order)

    def _extra(self, held: int) -> float:
        return self._weight * (self._prompt_tokens - held)

    def _walk(self, held: int, fits: Callable[[L], bool]) -> None:
        """Along each rung, as far as anybody there could still be among the nearest."""
        extra = self._extra(held)
        for lowest, rung in self._order.rungs(extra):
            limit = self._costs[-1][0] if len(self._costs) == self._at_most else math.inf
            if lowest > limit:
                return
            room = self._at_most
            for cost, lane in self._order.rising(rung, extra, self._random):
                if cost > limit or not room:
                    break
                if fits(lane):
                    self._costs.append((cost, lane))
                    room -= 1
            self._cut()

    def _cut(self) -> None:
        """Keep the nearest so far, in order; chance among equals."""
        turn = self._random.randrange(len(self._costs)) if len(self._costs) > self._at_most else 0
        turned = self._costs[turn:] + self._costs[:turn]
        self._costs = sorted(turned, key=itemgetter(0))[: self._at_most]

    @property
    def _lanes(self) -> list[L]:
        return [lane for _, lane in self._costs]


def _fits(index: BlockIndex | None, lanes: int, seen: Container[LaneState], lane: LaneState) -> bool:
    """Whether a lane is of these lanes and was not seen yet."""
    return lane not in seen and (lanes == EVERYONE or index is None or bool(index.bit(lane.handle) & lanes))
