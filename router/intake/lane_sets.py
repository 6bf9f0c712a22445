"""Sets of lanes under small numbers, so that a key of the index can say in one word who holds it."""

from __future__ import annotations

__all__ = ["LaneSets"]


class LaneSets:
    """``masks[number]`` has a bit for each lane of a set. A number lives while something is counted under it."""

    def __init__(self) -> None:
        self.masks: list[int] = []
        self._counts: list[int] = []
        self._numbers: dict[int, int] = {}
        self._free: list[int] = []

    def __len__(self) -> int:
        return len(self._numbers)

    def add(self, mask: int, count: int = 1) -> int:
        """Count so many more under a set; its number."""
        number = self._numbers.get(mask)
        if number is None:
            number = self._new(mask)
        self._counts[number] += count
        return number

    def take(self, number: int, count: int = 1) -> None:
        """Count so many less under a set, which goes with the last of them."""
        self._counts[number] -= count
        if not self._counts[number]:
            del self._numbers[self.masks[number]]
            self._free.append(number)

    def _new(self, mask: int) -> int:
        if self._free:
            number = self._free.pop()
            self.masks[number] = mask
        else:
            number = len(self.masks)
            self.masks.append(mask)
            self._counts.append(0)
        self._numbers[mask] = number
        return number

    def check_invariants(self, counts: dict[int, int]) -> None:
        """Raise AssertionError unless exactly these sets are counted, by mask."""
        found = {mask: self._counts[number] for mask, number in self._numbers.items()}
        assert found == counts, "sets of lanes are miscounted"
        assert all(self.masks[number] == mask for mask, number in self._numbers.items()), "a number of another set"
        assert len(self._numbers) + len(self._free) == len(self.masks), "numbers that are neither used nor free"
