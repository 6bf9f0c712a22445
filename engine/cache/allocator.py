"""Hands out logical block ids, the same id on every rank. Knows nothing of what is stored in them."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["BlockAllocator"]


class BlockAllocator:
    """The ids ``[0, total)``, each either free or held. The id freed last is handed out first."""

    def __init__(self, total: int) -> None:
        assert total > 0, f"a cache needs at least 1 block, got {total}"
        self.total = total
        self._free = list(range(total - 1, -1, -1))
        self._held = bytearray(total)

    @property
    def free_count(self) -> int:
        """Ids that can be allocated now."""
        return len(self._free)

    @property
    def held_count(self) -> int:
        """Ids that are out."""
        return self.total - len(self._free)

    def allocate(self, count: int) -> list[int]:
        """Take ``count`` free ids; the caller has made sure that there are so many."""
        assert count <= len(self._free), f"{count} blocks asked for, {len(self._free)} of {self.total} are free"
        blocks = [self._free.pop() for _ in range(count)]
        for block in blocks:
            self._held[block] = 1
        return blocks

    def free(self, blocks: Iterable[int]) -> None:
        """Give ids back; each must be held."""
        for block in blocks:
            assert self._held[block], f"block {block} is freed twice"
            self._held[block] = 0
            self._free.append(block)

    def check_invariants(self, held: Iterable[int] | None = None) -> None:
        """Every id is free or held, never both; if the holders' ids are given, they are exactly the held ones."""
        free = set(self._free)
        out = {block for block, flag in enumerate(self._held) if flag}
        assert len(free) == len(self._free), "an id is twice in the free list"
        assert not free & out, f"ids both free and held: {sorted(free & out)}"
        assert free | out == set(range(self.total)), "ids neither free nor held"
        if held is not None:
            named = list(held)
            assert len(named) == len(set(named)), "one block has two holders"
            assert set(named) == out, f"leaked {sorted(out - set(named))}, never allocated {sorted(set(named) - out)}"
