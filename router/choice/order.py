"""Lanes kept in the order of what they have to do, so that the least burdened are found without looking at all.

A lane is put in its place anew when its books have changed. What changes by itself, as the speeds that are learnt fade
and an engine's account of its load grows old, is seen in turn: a few lanes at each choice. Slow lanes stand apart, on a
rung for every ``RUNG`` by which they are slower than the fleet, since what the same burden means there differs.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from itertools import chain
from operator import itemgetter
from random import Random
from typing import Generic, TypeVar

from router.choice.cut import Cut
from router.choice.load import LaneLoad
from router.choice.sight import LaneState
from router.intake.index import LaneHandle

__all__ = ["Order"]

L = TypeVar("L", bound=LaneState)

RUNG = 1.25
MOST_RUNGS = 16
"""Up and down; a lane forty times slower than the fleet is as good as one still slower."""

LOOK_SECONDS = 1.0
LOOKS = 2
"""Lanes to look at anew at a choice: those that were not for longest, and not within ``LOOK_SECONDS``."""


class _Place(Generic[L]):
    """Where a lane stands, since when."""

    __slots__ = ("burden", "factor", "handle", "lane", "looked_at", "rung", "serial")

    def __init__(self, lane: L, serial: int) -> None:
        self.lane = lane
        self.handle = lane.handle
        self.serial = serial
        self.burden = 0.0
        self.rung, self.factor = 0, 1.0
        self.looked_at = -math.inf


class Order(Generic[L]):
    """Of lanes, for a rule's cut. ``changed`` is called by a lane's books; ``refresh`` comes before every question."""

    def __init__(self, cut: Cut, lanes: Iterable[L], *, now: float) -> None:
        self.cut = cut
        self._places: OrderedDict[LaneLoad, _Place[L]] = OrderedDict()
        self._by_handle: dict[LaneHandle, _Place[L]] = {}
        self._rungs: dict[int, list[tuple[float, int, L]]] = {}
        self._serial = 0
        self._changed: dict[LaneLoad, None] = {}
        self.changed = self._changed.setdefault
        for lane in lanes:
            self.add(lane)
        self.refresh(now)

    def __len__(self) -> int:
        return len(self._places)

    def add(self, lane: L) -> None:
        """A lane that was not here, and is put in its place before anybody asks; no two lanes have the same books."""
        assert lane.load not in self._places, f"{lane.url} rank {lane.dp_rank} has a place already"
        self._serial += 1
        place = self._places[lane.load] = self._by_handle[lane.handle] = _Place(lane, self._serial)
        self._enter(place)
        self._changed[lane.load] = None

    def discard(self, lane: L) -> None:
        """A lane that is here no more."""
        place = self._places.pop(lane.load)
        del self._by_handle[place.handle]
        self._changed.pop(lane.load, None)
        self._leave(place)

    def rename(self, lane: L) -> None:
        """It may have another handle in the index now."""
        place = self._places[lane.load]
        del self._by_handle[place.handle]
        place.handle = lane.handle
        self._by_handle[place.handle] = place

    def refresh(self, now: float) -> None:
        """Put those whose books have changed in their places."""
        if self._changed:
            for load in self._changed:
                self._look(self._places[load], now)
            self._changed.clear()

    def look_on(self, now: float) -> None:
        """Look at some of the others as well."""
        for _ in range(LOOKS):
            place = next(iter(self._places.values()))
            if now - place.looked_at < LOOK_SECONDS:
                return
            self._look(place, now)

    def of(self, handles: Iterable[LaneHandle], extra: float) -> list[tuple[float, L]]:
        """Those of these lanes that are here, with their rough costs of ``extra`` more to do."""
        found = map(self._by_handle.get, handles)
        return [((place.burden + extra) * place.factor, place.lane) for place in found if place is not None]

    def rungs(self, extra: float) -> list[tuple[float, int]]:
        """The lowest rough cost on each rung of ``extra`` more to do, and the rung; the lowest first."""
        return sorted([((lanes[0][0] + extra) * RUNG**rung, rung) for rung, lanes in self._rungs.items()])

    def rising(self, rung: int, extra: float, random: Random) -> Iterator[tuple[float, L]]:
        """A rung's lanes with their rough costs, the lowest first; chance among equals."""
        lanes, factor, start = self._rungs[rung], RUNG**rung, 0
        while start < len(lanes):
            burden = lanes[start][0]
            turn, end = start, start + 1
            if end < len(lanes) and lanes[end][0] == burden:
                end = bisect_left(lanes, (burden, math.inf), lo=end)
                turn = random.randrange(start, end)
            cost = (burden + extra) * factor
            for place in chain(range(turn, end), range(start, turn)):
                yield cost, lanes[place][2]
            start = end

    def _look(self, place: _Place[L], now: float) -> None:
        place.looked_at = now
        self._places.move_to_end(place.lane.load)
        burden, rung = self.cut.burden(place.lane.load, now), self._rung(place.lane, now)
        if burden != place.burden or rung != place.rung:
            self._leave(place)
            place.burden, place.rung, place.factor = burden, rung, RUNG**rung
            self._enter(place)

    def _rung(self, lane: L, now: float) -> int:
        slowness = lane.speed.slowness(now) if self.cut.uncached_weight else 1.0
        if slowness == 1.0:
            return 0
        return max(-MOST_RUNGS, min(round(math.log(slowness, RUNG)), MOST_RUNGS))

    def _enter(self, place: _Place[L]) -> None:
        insort(self._rungs.setdefault(place.rung, []), (place.burden, place.serial, place.lane))

    def _leave(self, place: _Place[L]) -> None:
        lanes = self._rungs[place.rung]
        del lanes[bisect_left(lanes, (place.burden, place.serial))]
        if not lanes:
            del self._rungs[place.rung]

    def check_invariants(self) -> None:
        """Raise AssertionError unless every lane stands, once and in order, where it was seen last."""
        entered = sorted((rung, burden, serial) for rung, lanes in self._rungs.items() for burden, serial, _ in lanes)
        places = self._places.values()
        assert entered == sorted((place.rung, place.burden, place.serial) for place in places), "places"
        assert all(lanes == sorted(lanes, key=itemgetter(0, 1)) and lanes for lanes in self._rungs.values()), "order"
        assert self._by_handle == {place.handle: place for place in places}, "handles"
        assert self._changed.keys() <= self._places.keys(), "books of nobody"
