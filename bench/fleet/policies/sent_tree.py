"""What a router without events believes of all its replicas' caches at once: a prefix tree of what it sent to whom."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

__all__ = ["SentTree"]


class SentTree:
    """Paths of block keys, at most ``room`` blocks a replica, the longest unused ends forgotten first."""

    def __init__(self, replicas: int, *, room: int) -> None:
        self._room = room
        self._by_use: list[OrderedDict[int, None]] = [OrderedDict() for _ in range(replicas)]
        self._owners: dict[int, dict[int, None]] = {}  # who was sent a block, the last one last

    def size(self, replica: int) -> int:
        """Blocks of a replica."""
        return len(self._by_use[replica])

    def match(self, keys: Sequence[int]) -> tuple[int, int | None]:
        """Leading blocks that anybody was sent, and who was sent the last of them last."""
        depth, owner = 0, None
        for key in keys:
            owners = self._owners.get(key)
            if owners is None:
                break
            depth, owner = depth + 1, next(reversed(owners))
        return depth, owner

    def insert(self, replica: int, keys: Sequence[int]) -> None:
        """A replica is sent a prompt. A path's end is never used later than its begin, so it goes first."""
        by_use = self._by_use[replica]
        for key in reversed(keys):
            by_use[key] = None
            by_use.move_to_end(key)
            owners = self._owners.setdefault(key, {})
            owners.pop(replica, None)
            owners[replica] = None
        while len(by_use) > self._room:
            self._disown(replica, by_use.popitem(last=False)[0])

    def clear(self, replica: int) -> None:
        """A replica holds nothing any more."""
        for key in self._by_use[replica]:
            self._disown(replica, key)
        self._by_use[replica].clear()

    def _disown(self, replica: int, key: int) -> None:
        owners = self._owners[key]
        del owners[replica]
        if not owners:
            del self._owners[key]
