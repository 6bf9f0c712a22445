"""Keys by the engine's own hashes: in a compact table where these are numbers, in a dict where they are digests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from contract.events import BlockHash
from router.intake.table import Table

__all__ = ["NamedKeys"]


class NamedKeys:
    """A map from engine hash to key, in which a store's blocks come in one call."""

    __slots__ = ("_digests", "_numbers")

    def __init__(self) -> None:
        self._numbers = Table()
        self._digests: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._numbers) + len(self._digests)

    def __contains__(self, name: BlockHash) -> bool:
        return name in self._digests if isinstance(name, bytes) else name in self._numbers

    def get(self, name: BlockHash) -> int | None:
        """The key of a block, or None."""
        return self._digests.get(name) if isinstance(name, bytes) else self._numbers.get(name)

    def set(self, name: BlockHash, key: int) -> None:
        """Give a block its key."""
        if isinstance(name, bytes):
            self._digests[name] = key
        else:
            self._numbers.set(name, key)

    def pop(self, name: BlockHash) -> int | None:
        """Take a block out; its key, or None where it was not there."""
        return self._digests.pop(name, None) if isinstance(name, bytes) else self._numbers.pop(name)

    def fill(self, names: Sequence[BlockHash], keys: Sequence[int]) -> list[int]:
        """Give new blocks their keys; the places of those that were there, which keep theirs."""
        try:
            return self._numbers.fill(names, keys)  # type: ignore[arg-type]  # refuses digests, having changed nothing
        except TypeError:
            return [place for place, name in enumerate(names) if not self._fill_one(name, keys[place])]

    def _fill_one(self, name: BlockHash, key: int) -> bool:
        if name in self:
            return False
        self.set(name, key)
        return True

    def take(self, names: Sequence[BlockHash]) -> list[int | None]:
        """Take blocks out; their keys, None where one was not there."""
        try:
            return self._numbers.take(names)  # type: ignore[arg-type]  # refuses digests, having changed nothing
        except TypeError:
            return [self.pop(name) for name in names]

    def names(self) -> Iterator[BlockHash]:
        """All blocks, in no order."""
        yield from (name for name, _ in self._numbers.items())
        yield from self._digests

    def all_keys(self) -> list[int]:
        """All keys, in the order of ``names``."""
        return [key for _, key in self._numbers.items()] + list(self._digests.values())

    def clear(self) -> None:
        """Take all blocks out."""
        self._numbers.clear()
        self._digests.clear()
