"""The blocks of one lane in one tier and one cache group, as the engine told of them: the engine's truth."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet

from contract.events import BlockHash
from router.intake.named_keys import NamedKeys

__all__ = ["Pool"]


class Pool:
    """A block is in ``keyed`` with our key, or in ``unkeyed`` while it has none; only a pool that ``decides`` has keys.

    ``extra`` counts copies beyond the first; they are kept aside because they are rare.
    """

    __slots__ = ("decides", "extra", "group", "keyed", "tier", "unkeyed")

    def __init__(self, *, tier: str, group: int | None, decides: bool) -> None:
        self.tier = tier
        self.group = group
        self.decides = decides
        self.keyed = NamedKeys()
        self.unkeyed: set[BlockHash] = set()
        self.extra: dict[BlockHash, int] = {}

    def __len__(self) -> int:
        return len(self.keyed) + len(self.unkeyed)

    def __contains__(self, name: BlockHash) -> bool:
        return name in self.keyed or name in self.unkeyed

    def __iter__(self) -> Iterator[BlockHash]:
        yield from self.keyed.names()
        yield from self.unkeyed

    @property
    def loose(self) -> AbstractSet[BlockHash]:
        """Blocks that would match if they had a key."""
        return self.unkeyed if self.decides else frozenset()

    def hold(self, names: Sequence[BlockHash], keys: Sequence[int]) -> list[int]:
        """Hold blocks under their keys; the places of those that were held before, which stay as they are."""
        if not self.unkeyed:
            return self.keyed.fill(names, keys)
        held = [place for place, name in enumerate(names) if name in self.unkeyed]
        fresh = [place for place, name in enumerate(names) if name not in self.unkeyed]
        known = self.keyed.fill([names[place] for place in fresh], [keys[place] for place in fresh])
        return sorted(held + [fresh[place] for place in known])

    def give_key(self, name: BlockHash, key: int) -> None:
        """The key of a block that is held without one has become known."""
        self.unkeyed.discard(name)
        self.keyed.set(name, key)

    def copies(self, name: BlockHash) -> int:
        """Copies held; 0 for a block that is not here."""
        return 1 + self.extra.get(name, 0) if name in self else 0

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
        assert self.decides or not len(self.keyed), "a pool that decides nothing holds a key"
        assert not any(name in self.keyed for name in self.unkeyed), "a block both with a key and without"
        assert all(name in self for name in self.extra), "copies of a block that is not held"
        assert all(count > 0 for count in self.extra.values()), "a copy count below one"
