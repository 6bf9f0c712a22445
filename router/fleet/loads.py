"""The books of every lane that still has something in them, under the lane's name.

A replica may be taken out and put back while requests still run on its engine. The new lane then goes on with the old
one's books, so that what still runs is not forgotten. Nothing is kept once nobody holds it.
"""

from __future__ import annotations

from weakref import WeakValueDictionary

from router.choice.load import LaneLoad

__all__ = ["Loads"]


class Loads:
    """A lane holds its books while it lives, and each running request holds those it was entered in."""

    def __init__(self) -> None:
        self._by_lane: WeakValueDictionary[tuple[str, int], LaneLoad] = WeakValueDictionary()

    def of(self, url: str, dp_rank: int) -> LaneLoad:
        """The books of a lane; new ones where nobody holds any."""
        load = self._by_lane.get((url, dp_rank))
        if load is None:
            load = self._by_lane[url, dp_rank] = LaneLoad()
        return load
