"""Blocks that an engine holds but whose place in a prompt is unknown, because their parent is.

A router that joins late, or that lost a batch, is told of children whose parents it never heard of. They match nothing,
but when the parent is stored again they must match at once: each waits under its parent's hash, with its token ids,
within a bound on their number.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence

import msgspec

from contract.events import BlockHash
from contract.hashing import block_key, compact, extend_key

__all__ = ["Orphan", "Orphans"]


class Orphan(msgspec.Struct, frozen=True):
    """What it takes to key a block once its parent's key is known."""

    parent: BlockHash
    token_ids: Sequence[int]
    extra: object

    def key(self, parent: int) -> int:
        """Key under the parent's key."""
        key = block_key(self.token_ids, parent=parent)
        return key if self.extra is None else extend_key(key, self.extra)


class Orphans:
    """Parked blocks by their own hash, oldest first, and who waits for whom."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._parked: OrderedDict[BlockHash, Orphan] = OrderedDict()
        self._children: dict[BlockHash, set[BlockHash]] = {}
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._parked)

    def __contains__(self, name: BlockHash) -> bool:
        return name in self._parked

    def __iter__(self) -> Iterator[BlockHash]:
        return iter(self._parked)

    def park(self, name: BlockHash, orphan: Orphan) -> None:
        """Let a block wait for its parent; the oldest one gives way where the bound is reached."""
        if name in self._parked:
            return
        self._parked[name] = Orphan(orphan.parent, compact(orphan.token_ids), orphan.extra)
        self._children.setdefault(orphan.parent, set()).add(name)
        if len(self._parked) > self._limit:
            self.forget(next(iter(self._parked)))
            self.dropped += 1

    def forget(self, name: BlockHash) -> None:
        """Stop waiting on behalf of a block; nothing happens where it does not wait."""
        orphan = self._parked.pop(name, None)
        if orphan is None:
            return
        siblings = self._children[orphan.parent]
        siblings.discard(name)
        if not siblings:
            del self._children[orphan.parent]

    def adopt(self, name: BlockHash, key: int) -> list[tuple[BlockHash, int]]:
        """Hash and key of every block that can be placed now that ``name`` has a key: children, their children, ..."""
        placed: list[tuple[BlockHash, int]] = []
        known = [(name, key)]
        while known:
            parent, parent_key = known.pop()
            for child in self._children.pop(parent, ()):
                found = (child, self._parked.pop(child).key(parent_key))
                placed.append(found)
                known.append(found)
        return placed

    def clear(self) -> None:
        """Forget everything that waits."""
        self._parked.clear()
        self._children.clear()

    def check_invariants(self) -> None:
        """Raise AssertionError unless the two views agree."""
        links = {(orphan.parent, name) for name, orphan in self._parked.items()}
        assert links == {(parent, name) for parent, names in self._children.items() for name in names}, "orphan links"
        assert all(self._children.values()), "an empty set of children"
        assert len(self._parked) <= self._limit, f"{len(self._parked)} orphans, limit {self._limit}"
