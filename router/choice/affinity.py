"""Where a session was served last. A preference worth some seconds, never a pin: a session goes elsewhere when its lane
costs more than that. Bounded; times are handed in.
"""

from __future__ import annotations

from collections import OrderedDict

__all__ = ["Affinity"]

MAX_SESSIONS = 65_536
KEEP_SECONDS = 3_600.0

_Place = tuple[str, int]


class Affinity:
    """``seconds``: what it costs a session to leave its lane. The longest unused sessions are forgotten first."""

    def __init__(self, *, seconds: float) -> None:
        self.seconds = seconds
        self._places: OrderedDict[str, tuple[_Place, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._places)

    def place(self, session: str, *, now: float) -> _Place | None:
        """URL and rank of the lane that served it last; None for one that is new or was away for long."""
        found = self._places.get(session)
        return found[0] if found is not None and now - found[1] < KEEP_SECONDS else None

    def settle(self, session: str, *, url: str, dp_rank: int, now: float) -> None:
        """It is served there now."""
        self._places[session] = ((url, dp_rank), now)
        self._places.move_to_end(session)
        if len(self._places) > MAX_SESSIONS:
            self._places.popitem(last=False)
