"""A map from 64-bit words to 64-bit words, in which whole blocks of keys come and go in one call each.

This is what ``router.intake._table`` does in compiled form and in a third of the memory: for where that was not built,
and as the rule that it is held to.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

__all__ = ["Table"]


class Table:
    """Methods raise OverflowError for a number that is no word, TypeError for what is no number, and change nothing."""

    def __init__(self) -> None:
        self._values: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, key: int, /) -> bool:
        return key in self._values

    def get(self, key: int, /) -> int | None:
        """The value of a key, or None."""
        return self._values.get(key)

    def set(self, key: int, value: int, /) -> None:
        """Give a key its value, whether it had one or not."""
        _require_words([key, value])
        self._values[key] = value

    def pop(self, key: int, /) -> int | None:
        """Take a key out; its value, or None where it was not there."""
        return self._values.pop(key, None)

    def fill(self, keys: Sequence[int], values: Sequence[int] | int, /) -> list[int]:
        """Give new keys their values, or the one value that is for all.

        Returns the places of keys that were there already, which stay as they are.

        Raises:
            ValueError: as many values as keys, or one, and it was neither.
        """
        held, known = self._values, []
        each = [values] * len(keys) if isinstance(values, int) else values
        if len(each) != len(keys):
            raise ValueError(f"{len(keys)} keys, {len(each)} values")
        _require_words(keys)
        _require_words(each)
        for place, (key, value) in enumerate(zip(keys, each, strict=True)):
            if key in held:
                known.append(place)
            else:
                held[key] = value
        return known

    def drop(self, keys: Sequence[int], value: int, /) -> list[int]:
        """Take out the keys that have this value; the places of the others, which stay as they are."""
        held, others = self._values, []
        for place, key in enumerate(keys):
            if held.get(key) == value:
                del held[key]
            else:
                others.append(place)
        return others

    def take(self, keys: Sequence[int], /) -> list[int | None]:
        """Take keys out; their values, None where one was not there."""
        _require_words(keys)
        return [self._values.pop(key, None) for key in keys]

    def run(self, keys: Sequence[int], start: int, /) -> tuple[int, int | None]:
        """From a place on: the place at which keys stop having the first one's value, and that value."""
        get, place, first = self._values.get, start, self._values.get(keys[start])
        for place in range(start + 1, len(keys)):
            if get(keys[place]) != first:
                return place, first
        return len(keys), first

    def items(self) -> list[tuple[int, int]]:
        """All keys with their values, in no order."""
        return list(self._values.items())

    def clear(self) -> None:
        """Take all keys out."""
        self._values.clear()


def _require_words(numbers: Sequence[int]) -> None:
    if not isinstance(numbers, array):
        array("Q", numbers)
