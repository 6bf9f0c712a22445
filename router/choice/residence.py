"""How long a lane's cache keeps what nobody asks for, told from samples of what was sent there.

A cache that drops what was unused longest holds everything that was asked for within some time, and that time is what
room is worth there: where it is short, a new prompt pushes out what may soon be asked for again. No engine tells it.
So the keys at fixed places of the prompts sent to a lane are remembered with their times, and those that the index no
longer holds are forgotten, oldest first: the oldest one left is as old as the cache keeps things. Pure: times are
handed in.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable

from router.choice.memory import Keys
from router.intake.index import LaneHandle

__all__ = ["Residence", "Residences"]

SAMPLE_TOKENS = 1_024
"""From one sample to the next. The places are fixed, so prompts that share a prefix have its samples in common."""

MAX_SAMPLES = 1_024
"""A lane's, in 150 kB: a million tokens. A cache that holds more than that is never seen to drop anything."""

MAX_LANES = 4_096

YOUNG_SECONDS = 10.0
"""A key used so lately is not taken for dropped: what was only just sent is held nowhere yet."""


class Residence:
    """One lane's samples."""

    def __init__(self) -> None:
        self._used: OrderedDict[int, float] = OrderedDict()
        self._oldest = math.inf
        self._dropping = False

    def __len__(self) -> int:
        return len(self._used)

    def use(self, keys: Keys, *, width: int, holds: Callable[[int], bool], now: float) -> None:
        """A prompt with these block keys is sent there; ``holds``: whether a key is held there, or on its way."""
        step = max(1, SAMPLE_TOKENS // width)
        for place in range(step - 1, min(len(keys), step * MAX_SAMPLES), step):
            key = keys[place]
            self._used[key] = now
            self._used.move_to_end(key)
        while len(self._used) > MAX_SAMPLES:
            self._used.popitem(last=False)
        self._forget_dropped(holds, now)

    def age(self, now: float) -> float:
        """Seconds since the use of what has been unused longest; infinite while the cache has dropped nothing."""
        return now - self._oldest if self._dropping else math.inf

    def _forget_dropped(self, holds: Callable[[int], bool], now: float) -> None:
        while self._used:
            key, self._oldest = next(iter(self._used.items()))
            if now - self._oldest < YOUNG_SECONDS or holds(key):
                return
            del self._used[key]
            self._dropping = True


class Residences:
    """Each lane's, by its handle in the index; those that were not used for longest are forgotten first."""

    def __init__(self) -> None:
        self._by_lane: OrderedDict[LaneHandle, Residence] = OrderedDict()

    def of(self, lane: LaneHandle) -> Residence:
        """The lane's, for something that is sent there."""
        found = self._by_lane.get(lane)
        if found is None:
            found = self._by_lane[lane] = Residence()
        self._by_lane.move_to_end(lane)
        if len(self._by_lane) > MAX_LANES:
            self._by_lane.popitem(last=False)
        return found

    def age(self, lane: LaneHandle, now: float) -> float:
        """See `Residence`; infinite for a lane that nothing was sent to."""
        found = self._by_lane.get(lane)
        return math.inf if found is None else found.age(now)
