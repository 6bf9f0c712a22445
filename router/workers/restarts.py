"""When a worker that died is started again, and when not. Pure."""

from __future__ import annotations

__all__ = ["DEATHS_TO_GIVE_UP", "Restarts"]

DEATHS_TO_GIVE_UP = 5
LIVED_SECONDS = 10.0
"""A worker that lived that long was well: its death begins a new row."""

FIRST_PAUSE = 0.1
LONGEST_PAUSE = 5.0


class Restarts:
    """One worker's deaths in a row."""

    def __init__(self) -> None:
        self._deaths = 0

    def pause(self, *, lived: float) -> float | None:
        """It died after so many seconds: how many to wait before it is started again; None: never."""
        self._deaths = 1 if lived >= LIVED_SECONDS else self._deaths + 1
        if self._deaths >= DEATHS_TO_GIVE_UP:
            return None
        return min(FIRST_PAUSE * 4.0 ** (self._deaths - 1), LONGEST_PAUSE)
