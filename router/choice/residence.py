"""What a lane's cache will still hold in a while, and what it is worth: told from samples of what was sent there.

A cache drops what was unused longest, and no engine tells what that is. So the keys at fixed places of the prompts sent
to a lane are remembered in the order of their last use. What the index no longer holds was dropped, and how long it had
been unused is the cache's age. Of what is left, the oldest will be dropped for what waits there now.

Where others send to the lane too, only what came through here is in order, and nothing is foretold of the rest. Pure:
times are handed in.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable

from router.choice.memory import Keys, mark_step
from router.choice.recurrence import Recurrence
from router.intake.index import LaneHandle

__all__ = ["Residence", "Residences"]

Holds = Callable[[int], bool]

MAX_SAMPLES = 512
"""A lane's, in 120 kB. There is one for each mark of a prompt until these are too many; then every second one goes, and
so on, so that a cache of any size has some hundreds."""

MAX_LANES = 4_096

YOUNG_SECONDS = 10.0
"""A key used so lately is not taken for dropped: what was only just sent is held nowhere yet."""


class Residence:
    """One lane's samples: each key's last use, and the place in its prompt. All ``_doomed`` are older than the rest."""

    def __init__(self, width: int) -> None:
        self.width = width
        self._step = mark_step(width)
        self._doomed: OrderedDict[int, tuple[float, int]] = OrderedDict()
        self._staying: OrderedDict[int, tuple[float, int]] = OrderedDict()
        self._dropped: float | None = None

    def __len__(self) -> int:
        return len(self._doomed) + len(self._staying)

    def use(self, keys: Keys, *, holds: Holds, now: float) -> None:
        """A prompt with these block keys is sent there; ``holds``: whether a key is held there, or on its way.

        A prompt's end is dropped before its begin.
        """
        for blocks in reversed(range(self._step, min(len(keys), self._step * MAX_SAMPLES) + 1, self._step)):
            key = keys[blocks - 1]
            self._doomed.pop(key, None)
            self._staying[key] = now, blocks
            self._staying.move_to_end(key)
        while len(self) > MAX_SAMPLES:
            self._coarsen()
        self._forget_dropped(holds, now)

    def foresee(self, waiting: int, *, holds: Holds, now: float) -> None:
        """So many tokens will be brought there: as many that are there now are doomed."""
        count = waiting // (self._step * self.width)
        while len(self._doomed) > count:
            key, last = self._doomed.popitem()
            self._staying[key] = last
            self._staying.move_to_end(key, last=False)
        self._forget_dropped(holds, now)
        while self._dropped is not None and len(self._doomed) < count and self._staying:
            key, last = self._staying.popitem(last=False)
            if self._is_there(key, last, holds, now):
                self._doomed[key] = last

    def staying(self, keys: Keys, tokens: int) -> int:
        """Of so many leading tokens of a prompt with these keys, those that are not doomed."""
        if not self._doomed:
            return tokens
        stride = self._step * self.width
        samples = range(tokens // stride)
        left = bisect_left(samples, True, key=lambda sample: keys[(sample + 1) * self._step - 1] in self._doomed)
        return left * stride if left < len(samples) else tokens

    @property
    def is_full(self) -> bool:
        """Whether the cache drops things."""
        return self._dropped is not None

    def age(self, now: float) -> float:
        """How long the cache keeps what nobody asks for, in seconds; infinite while it has dropped nothing."""
        return math.inf if self._dropped is None else now - self._dropped

    def _forget_dropped(self, holds: Holds, now: float) -> None:
        for uses in (self._doomed, self._staying):
            while uses:
                key, last = next(iter(uses.items()))
                if self._is_there(key, last, holds, now):
                    return
                del uses[key]

    def _is_there(self, key: int, last: tuple[float, int], holds: Holds, now: float) -> bool:
        if now - last[0] < YOUNG_SECONDS or holds(key):
            return True
        self._dropped = last[0]
        return False

    def _coarsen(self) -> None:
        self._step *= 2
        for uses in (self._doomed, self._staying):
            for key in [key for key, (_, blocks) in uses.items() if blocks % self._step]:
                del uses[key]


class Residences:
    """Each lane's, by its handle in the index; those that were not used for longest are forgotten first."""

    def __init__(self) -> None:
        self._by_lane: OrderedDict[LaneHandle, Residence] = OrderedDict()
        self._recurrence = Recurrence()

    def __len__(self) -> int:
        return len(self._by_lane)

    def use(self, lane: LaneHandle, keys: Keys, *, width: int, holds: Holds, now: float) -> None:
        """See `Residence`."""
        found = self._by_lane.get(lane)
        if found is None or found.width != width:
            found = self._by_lane[lane] = Residence(width)
        self._by_lane.move_to_end(lane)
        if len(self._by_lane) > MAX_LANES:
            self._by_lane.popitem(last=False)
        found.use(keys, holds=holds, now=now)
        self._recurrence.asked(keys, width=width, now=now)

    def of(self, lane: LaneHandle, *, width: int) -> Residence | None:
        """None where nothing was sent at that width."""
        found = self._by_lane.get(lane)
        return found if found is not None and found.width == width else None

    def regret(self, lane: LaneHandle, now: float) -> float:
        """The chance that what a prompt pushes out there will be asked for again."""
        found = self._by_lane.get(lane)
        return 0.0 if found is None else self._recurrence.chance(found.age(now))
