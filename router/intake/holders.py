"""Which lanes hold which key, for all lanes at once: one table from key to a set of lanes.

A look-up that narrows a set of lanes along a prompt's keys costs the same for one lane as for sixty. Most keys are held
by one lane, and neighbours in a chain mostly by the same lanes, so keys come, go and are looked up by the run. Knows
nothing of engine hashes, tiers or copies.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from router.intake.lane_sets import LaneSets
from router.intake.table import Table

__all__ = ["Holders"]


class Holders:
    """A lane is a bit, a set of lanes a mask. Keys that nobody holds are absent."""

    def __init__(self) -> None:
        self._sets = LaneSets()
        self._table = Table()

    def __len__(self) -> int:
        return len(self._table)

    def run(self, keys: Sequence[int], start: int) -> tuple[int, int]:
        """From a place on: where keys stop being held by the very lanes that hold the first, and these lanes."""
        end, number = self._table.run(keys, start)
        return end, 0 if number is None else self._sets.masks[number]

    def add(self, keys: Sequence[int], bit: int) -> list[int]:
        """The lane holds these keys; those that it held before are returned."""
        if not len(keys):
            return []
        alone = self._sets.add(bit, len(keys))
        places = self._table.fill(keys, alone)
        if not places:
            return places
        self._sets.take(alone, len(places))
        again: list[int] = []
        for shared, number in self._runs([keys[place] for place in places]):
            mask = self._sets.masks[number]
            again += shared if mask & bit else self._move(shared, number, mask | bit)
        return again

    def release(self, keys: Sequence[int], bit: int) -> None:
        """The lane, which held each of these keys once, holds them no more."""
        if not len(keys):
            return
        alone = self._sets.add(bit)
        places = self._table.drop(keys, alone)
        self._sets.take(alone, 1 + len(keys) - len(places))
        for shared, number in self._runs([keys[place] for place in places]):
            self._move(shared, number, self._sets.masks[number] ^ bit)

    def _runs(self, keys: Sequence[int]) -> Iterator[tuple[Sequence[int], int]]:
        """Keys that somebody holds, as runs held by the same lanes, with the number of these."""
        start = 0
        while start < len(keys):
            end, number = self._table.run(keys, start)
            assert number is not None, "a key that is shared has holders"
            yield keys[start:end], number
            start = end

    def _move(self, keys: Sequence[int], number: int, mask: int) -> list[int]:
        """Give keys that these lanes hold to others; returned is what was named a second time."""
        twice = self._table.drop(keys, number)
        moved = len(keys) - len(twice)
        self._table.fill(keys, self._sets.add(mask, moved))
        self._sets.take(number, moved)
        return [keys[place] for place in twice]

    def masks(self) -> dict[int, int]:
        """Who holds each key, as it would look written out; for checks."""
        return {key: self._sets.masks[number] for key, number in self._table.items()}

    def check_invariants(self) -> None:
        """Raise AssertionError unless the parts agree."""
        masks = self.masks()
        assert all(masks.values()), "a key that nobody holds"
        self._sets.check_invariants(dict(Counter(masks.values())))
