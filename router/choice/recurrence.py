"""How soon what was asked for is asked for again, wherever it was sent.

Told from the idle time of each prompt's longest known prefix: in a session that is the pause between two turns. Idle
times spread over orders of magnitude, so the chance that something is asked for once more falls slowly as it lies
unused: as ``mean / (mean + idle)``. Keys at fixed places of prompts are remembered. Bounded; times are handed in.
"""

from __future__ import annotations

from collections import OrderedDict

from router.choice.memory import Keys

__all__ = ["Recurrence"]

SAMPLE_TOKENS = 1_024
"""From one remembered key to the next. The places are fixed, so prompts that share a prefix have its keys in common."""

MAX_KEYS = 32_768
"""33 million tokens, in 5 MB."""

MAX_KEYS_OF_ONE = 1_024
MEAN_OVER = 50
"""Prompts that the mean idle time goes back to."""


class Recurrence:
    """Of all prompts that one router sends."""

    def __init__(self) -> None:
        self._asked_at: OrderedDict[int, float] = OrderedDict()
        self._found = 0
        self._mean = 0.0

    def __len__(self) -> int:
        return len(self._asked_at)

    def asked(self, keys: Keys, *, width: int, now: float) -> None:
        """A prompt with these block keys is asked for."""
        step = max(1, SAMPLE_TOKENS // width)
        found = None
        for place in reversed(range(step - 1, min(len(keys), step * MAX_KEYS_OF_ONE), step)):
            key = keys[place]
            if found is None:
                found = self._asked_at.get(key)
            self._asked_at[key] = now
            self._asked_at.move_to_end(key)
        while len(self._asked_at) > MAX_KEYS:
            self._asked_at.popitem(last=False)
        if found is not None:
            self._found = min(self._found + 1, MEAN_OVER)
            self._mean += (now - found - self._mean) / self._found

    def chance(self, idle: float) -> float:
        """That something is asked for again which nobody has asked for in so many seconds."""
        return self._mean / (self._mean + idle) if self._mean else 0.0
