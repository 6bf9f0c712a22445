"""How often a prefix has been asked for lately, whatever came after it. Bounded; times are handed in."""

from __future__ import annotations

from collections import OrderedDict

__all__ = ["PrefixHeat"]

HALF_LIFE = 60.0
MAX_PREFIXES = 4_096


class PrefixHeat:
    """Fading counts by the key of a prefix's last block. The longest unused are forgotten first."""

    def __init__(self) -> None:
        self._counts: OrderedDict[int, tuple[float, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._counts)

    def of(self, key: int, *, now: float) -> float:
        """Requests for the prefix, each counting half as much every minute."""
        count, at = self._counts.get(key, (0.0, now))
        return count * 0.5 ** ((now - at) / HALF_LIFE) if count else 0.0

    def add(self, key: int, *, now: float) -> None:
        """One more request for it."""
        self._counts[key] = (self.of(key, now=now) + 1.0, now)
        self._counts.move_to_end(key)
        if len(self._counts) > MAX_PREFIXES:
            self._counts.popitem(last=False)
