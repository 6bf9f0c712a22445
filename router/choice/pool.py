"""The lanes that may serve a request, kept from one request to the next.

A list of them and, once a rule asks for it, the order of what they have to do: both are kept up as lanes come and go,
so that nothing of a choice need be done for each of a thousand lanes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar, overload

from router.choice.cut import Cut
from router.choice.order import Order
from router.choice.sight import LaneState

__all__ = ["Pool"]

L = TypeVar("L", bound=LaneState)


class Pool(Sequence[L]):
    """``members`` in the order in which they came. Whoever keeps it says when one of them has another handle."""

    def __init__(self, lanes: Iterable[L] = ()) -> None:
        self.members: tuple[L, ...] = ()
        self._here: set[L] = set()
        self._order: Order[L] | None = None
        self.add(*lanes)

    def __len__(self) -> int:
        return len(self.members)

    def __iter__(self) -> Iterator[L]:
        return iter(self.members)

    @overload
    def __getitem__(self, place: int) -> L: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[L]: ...
    def __getitem__(self, place: int | slice) -> L | Sequence[L]:
        return self.members[place]

    def __contains__(self, lane: object) -> bool:
        return lane in self._here

    def add(self, *lanes: L) -> None:
        """Take lanes in; one that is here is known by its handle of now."""
        new = tuple(lane for lane in lanes if lane not in self._here)
        self.members += new
        if self._order is not None:
            for lane in lanes:
                if lane in self._here:
                    self._order.rename(lane)
                else:
                    self._order.add(lane)
                    lane.load.tell(self._order.changed)
        self._here.update(new)

    def discard(self, lane: L) -> None:
        """Let one go, if it is here."""
        if lane not in self._here:
            return
        self._here.remove(lane)
        self.members = tuple(other for other in self.members if other is not lane)
        if self._order is not None:
            lane.load.tell_no_more(self._order.changed)
            self._order.discard(lane)

    def order(self, cut: Cut, *, now: float) -> Order[L]:
        """The lanes in order, those whose books have changed in their places; kept up from the first call on."""
        if self._order is None:
            self._order = Order(cut, self.members, now=now)
            for lane in self.members:
                lane.load.tell(self._order.changed)
        assert self._order.cut is cut, "a pool is asked by one rule"
        self._order.refresh(now)
        return self._order

    def look_on(self, now: float) -> None:
        """A choice was made: look anew at some lanes whose books have not changed for long."""
        if self._order is not None:
            self._order.look_on(now)

    def close(self) -> None:
        """Nobody asks any more: the lanes' books have one listener less."""
        if self._order is not None:
            for lane in self.members:
                lane.load.tell_no_more(self._order.changed)
            self._order = None
