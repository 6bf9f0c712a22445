"""The few lanes of a large fleet that are worth a closer look for a prompt: by a rough cost, and without asking all.

The rough cost is a rule's (`Cut`): what a lane has to do, and what of the prompt is not held there. Lanes that hold
none of it are equal but for what they have to do, and so are those that hold as much of it, so the least burdened of
each will do. They are found in the lanes' order, or by looking at each of them where they are few.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from heapq import nsmallest
from itertools import islice
from operator import itemgetter
from random import Random
from typing import Generic, TypeVar

from router.choice.cut import Cut
from router.choice.order import Order
from router.choice.sight import LaneState
from router.intake.index import EVERYONE, BlockIndex, Holding, LaneHandle

__all__ = ["Nearest"]

L = TypeVar("L", bound=LaneState)


class Nearest(Generic[L]):
    """One search among the lanes of an order, for a prompt of ``prompt_tokens``. ``lane``: the one with a handle."""

    def __init__(
        self, order: Order[L], lane: Callable[[LaneHandle], L | None], *, prompt_tokens: int, random: Random
    ) -> None:
        self.lane = lane
        self._order = order
        self._cut = order.cut
        self._prompt_tokens = prompt_tokens
        self._random = random

    @classmethod
    def among(cls, lanes: Sequence[L], cut: Cut, *, prompt_tokens: int, now: float, random: Random) -> Nearest[L]:
        """A search among lanes that are in no order yet."""
        order, by_handle = Order(cut, lanes), {lane.handle: lane for lane in lanes}
        order.refresh(now)
        return cls(order, by_handle.get, prompt_tokens=prompt_tokens, random=random)

    def find(self, index: BlockIndex | None, holdings: Sequence[Holding], sent: Collection[L]) -> list[L]:
        """By what is held, ``sent`` being lanes that count as if they held all of it; chance among equals."""
        costs = [(self._order.cost(lane, 0.0), lane) for lane in sent]
        holders = 0
        for holding in holdings:
            holders |= holding.lanes
            costs += self._of(index, holding.lanes, held=holding.tokens, but=sent)
        costs += self._of(index, ~holders, held=0, but=sent)
        turn = self._random.randrange(len(costs))
        turned = costs[turn:] + costs[:turn]
        return [lane for _, lane in nsmallest(self._cut.at_most, turned, key=itemgetter(0))]

    def _of(self, index: BlockIndex | None, mask: int, *, held: int, but: Collection[L]) -> Iterable[tuple[float, L]]:
        """Of the lanes of a mask, those that could be among the nearest, and maybe others."""
        order, weight = self._order, self._cut.uncached_weight * (self._prompt_tokens - held)
        if index is None or mask == EVERYONE:
            lanes = ((cost, lane) for cost, lane in order.rising(weight, self._random) if lane not in but)
        elif self._few(index.count(mask)):
            found = map(self.lane, index.lanes_of(mask))
            return [(order.cost(lane, weight), lane) for lane in found if lane is not None and lane not in but]
        else:
            lanes = (
                (cost, lane)
                for cost, lane in order.rising(weight, self._random)
                if index.bit(lane.handle) & mask and lane not in but
            )
        return islice(lanes, self._cut.at_most)

    def _few(self, count: int) -> bool:
        """Whether looking at each is cheaper than coming by ``at_most`` of them on a walk along the order."""
        return count * count <= self._cut.at_most * len(self._order)
