"""Keys of blocks that an engine has just removed, remembered within a bound.

A block may arrive as the child of a parent that was removed a moment ago, or come back in another tier by its hash
alone; its key is then still worth knowing. Two generations make the oldest cheap to forget.
"""

from __future__ import annotations

from contract.events import BlockHash

__all__ = ["Departed"]


class Departed:
    """Engine hash to key for the latest removals: at least the last ``limit`` of them, at most twice as many."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._young: dict[BlockHash, int] = {}
        self._old: dict[BlockHash, int] = {}

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def remember(self, name: BlockHash, key: int) -> None:
        """Note the key that a removed block had."""
        if len(self._young) >= self._limit:
            self._old, self._young = self._young, {}
        self._young[name] = key

    def get(self, name: BlockHash) -> int | None:
        """Key of a block removed lately."""
        key = self._young.get(name)
        return self._old.get(name) if key is None else key

    def clear(self) -> None:
        """Forget everything."""
        self._young, self._old = {}, {}
