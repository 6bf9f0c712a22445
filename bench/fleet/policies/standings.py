"""Replicas in the order of one number each, so that the least is found without looking at all of them."""

from __future__ import annotations

from collections.abc import Collection
from random import Random

from sortedcontainers import SortedList

__all__ = ["Standings"]


class Standings:
    """A number for each replica that is there; every change costs the logarithm of how many there are."""

    def __init__(self, replicas: int) -> None:
        self._order = SortedList((0, replica) for replica in range(replicas))
        self._values = [0] * replicas

    def __getitem__(self, replica: int) -> int:
        return self._values[replica]

    def __contains__(self, replica: object) -> bool:
        return isinstance(replica, int) and (self._values[replica], replica) in self._order

    @property
    def least(self) -> int:
        """The lowest number."""
        value: int = self._order[0][0]
        return value

    @property
    def most(self) -> int:
        """The highest number."""
        value: int = self._order[-1][0]
        return value

    def add(self, replica: int, amount: int) -> None:
        """Change a replica's number, whether it is there or not."""
        there = replica in self
        if there:
            self._order.remove((self._values[replica], replica))
        self._values[replica] += amount
        if there:
            self._order.add((self._values[replica], replica))

    def left(self, replica: int) -> None:
        """It is not there any more; its number may still change."""
        self._order.remove((self._values[replica], replica))

    def back(self, replica: int) -> None:
        """It is there again."""
        self._order.add((self._values[replica], replica))

    def draw(self, random: Random, *, but: Collection[int] = ()) -> tuple[int, int] | None:
        """The lowest number of those not in ``but``, and one of the replicas that have it, by chance."""
        start = 0
        while start < len(self._order):
            value, _ = self._order[start]
            end = self._order.bisect_left((value + 1, -1))
            if (replica := self._draw_of(random, start, end, but)) is not None:
                return value, replica
            start = end
        return None

    def _draw_of(self, random: Random, start: int, end: int, but: Collection[int]) -> int | None:
        """One of the places [start, end) whose replica is not in ``but``; most draws hit where ``but`` is few."""
        if end - start > 2 * len(but):
            while (replica := self._order[random.randrange(start, end)][1]) in but:
                pass
            return int(replica)
        left = [replica for _, replica in self._order[start:end] if replica not in but]
        return random.choice(left) if left else None
