"""Which lanes hold which key, for all lanes at once: one dict from key to a bitmask of lanes.

A look-up that walks a prompt's keys with ``alive &= masks.get(key, 0)`` costs the same for one lane as for sixty. Most
keys are held by one lane, and then the mask is that lane's own bit, one object shared by all of them; masks of several
lanes are interned. Knows nothing of engine hashes, tiers or copies.
"""

from __future__ import annotations

__all__ = ["Holders"]

_MOST_INTERNED = 4096


class Holders:
    """``masks[key]`` has bit n set while the lane that owns bit n holds the key; keys that nobody holds are absent."""

    def __init__(self) -> None:
        self.masks: dict[int, int] = {}
        self._interned: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self.masks)

    def share(self, key: int, bit: int) -> None:
        """Add a lane to a key that other lanes hold."""
        self.masks[key] = self._intern(self.masks[key] | bit)

    def release(self, key: int, bit: int) -> None:
        """Take a lane off a key that it holds."""
        left = self.masks[key] ^ bit
        if left:
            self.masks[key] = self._intern(left)
        else:
            del self.masks[key]

    def _intern(self, mask: int) -> int:
        if len(self._interned) >= _MOST_INTERNED:
            self._interned.clear()
        return self._interned.setdefault(mask, mask)
