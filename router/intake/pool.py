"""The blocks of one lane in one tier and one cache group, as the engine told of them: the engine's truth."""

from __future__ import annotations

from contract.events import BlockHash

__all__ = ["Pool"]


class Pool:
    """``keys`` maps each block held to our key, None while it has none; ``extra`` counts copies beyond the first.

    ``loose`` are the blocks that have no key but would match if they had one, so only a pool that ``decides`` has any.
    Copies are kept aside because they are rare.
    """

    __slots__ = ("decides", "extra", "group", "keys", "loose", "tier")

    def __init__(self, *, tier: str, group: int | None, decides: bool) -> None:
        self.tier = tier
        self.group = group
        self.decides = decides
        self.keys: dict[BlockHash, int | None] = {}
        self.extra: dict[BlockHash, int] = {}
        self.loose: set[BlockHash] = set()

    def copies(self, name: BlockHash) -> int:
        """Copies held; 0 for a block that is not here."""
        return 1 + self.extra.get(name, 0) if name in self.keys else 0

    def add_copy(self, name: BlockHash) -> None:
        """One more copy of a block that is here."""
        self.extra[name] = self.extra.get(name, 0) + 1

    def drop_copy(self, name: BlockHash) -> bool:
        """One copy less of a block that is here; False where it is the last one, which then stays."""
        extra = self.extra.get(name, 0)
        if extra > 1:
            self.extra[name] = extra - 1
        elif extra:
            del self.extra[name]
        return extra > 0

    def check_invariants(self) -> None:
        """Raise AssertionError unless the parts agree."""
        unkeyed = {name for name, key in self.keys.items() if key is None}
        assert self.loose == (unkeyed if self.decides else set()), "loose blocks are the deciding ones without a key"
        assert self.decides or len(unkeyed) == len(self.keys), "a pool that decides nothing holds a key"
        assert self.extra.keys() <= self.keys.keys(), "copies of a block that is not held"
        assert all(count > 0 for count in self.extra.values()), "a copy count below one"
