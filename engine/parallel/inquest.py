"""Who is to blame when a world of rank processes ends. Pure: evidence in, one line out.

One rank's end takes the others with it: they fail in the collective that it did not join, and may well be the first to
say so. So those who only waited are heard, but not blamed while somebody else can be.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from engine.parallel.messages import Failure

__all__ = ["Inquest"]


class Inquest:
    """Evidence about ranks, called by their ``names``, of whom ``answered`` did all that was asked of them."""

    def __init__(self, names: Sequence[str], *, answered: Collection[int] = ()) -> None:
        self._names = names
        self._answered = set(answered)
        self._failures: dict[int, Failure] = {}
        self._gone: dict[int, str] = {}

    def failed(self, rank: int, failure: Failure) -> None:
        """A rank's last words."""
        self._failures[rank] = failure

    def gone(self, rank: int, obituary: str) -> None:
        """A rank's connection has ended; one that left last words is not asked again."""
        if rank not in self._failures:
            self._gone[rank] = obituary

    @property
    def settled(self) -> bool:
        """Whether more evidence could not change the verdict."""
        return self._culprit is not None or bool(self._gone) or not self._silent

    @property
    def trace(self) -> str | None:
        """Where the culprit failed, if it said so."""
        return None if self._culprit is None else self._failures[self._culprit].trace

    def verdict(self, *, patience: float) -> str:
        """One line that names who did it; ``patience`` is how many seconds the silent were waited for."""
        if self._culprit is not None:
            return f"{self._names[self._culprit]} failed: {self._failures[self._culprit].error}"
        if self._gone:
            return ", ".join(f"{self._names[rank]} {obituary}" for rank, obituary in sorted(self._gone.items()))
        waiting = next(((rank, failure.error) for rank, failure in self._failures.items()), None)
        complaint = "" if waiting is None else f"{self._names[waiting[0]]} waited in vain: {waiting[1]}"
        if self._silent:
            silent = ", ".join(self._names[rank] for rank in self._silent)
            return f"{silent} did not answer: {complaint or f'{patience:g} s have passed'}"
        return f"the ranks lost each other: {complaint}"

    @property
    def _culprit(self) -> int | None:
        return next((rank for rank, failure in self._failures.items() if not failure.waiting), None)

    @property
    def _silent(self) -> list[int]:
        heard = self._failures.keys() | self._gone.keys() | self._answered
        return [rank for rank in range(len(self._names)) if rank not in heard]
