"""Which lanes were sent a prompt that begins as nobody's cache does, so that siblings of it find the way there.

A prefix is told by its first key beyond what anybody holds: as long as nothing of it is announced, all its siblings ask
for the same one. For large fleets, where not every lane's own memory can be asked. Bounded: what was not asked for
longest is forgotten first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection

from router.intake.index import LaneHandle

__all__ = ["Pioneers"]

MAX_PREFIXES = 16_384
MAX_LANES = 32
"""Of one prefix: those that it was sent to last."""


class Pioneers:
    """A router's, by key."""

    def __init__(self) -> None:
        self._lanes: OrderedDict[int, OrderedDict[LaneHandle, None]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._lanes)

    def of(self, key: int) -> Collection[LaneHandle]:
        """Lanes that a prompt with this key was sent to, as far as that is remembered."""
        return self._lanes.get(key, ())

    def add(self, key: int, lane: LaneHandle) -> None:
        """A prompt with this key is sent to a lane."""
        lanes = self._lanes.setdefault(key, OrderedDict())
        self._lanes.move_to_end(key)
        lanes[lane] = None
        lanes.move_to_end(lane)
        if len(lanes) > MAX_LANES:
            lanes.popitem(last=False)
        if len(self._lanes) > MAX_PREFIXES:
            self._lanes.popitem(last=False)
