"""What a memory of sent prompts is, and which of a prompt's keys it holds.

Not every block's key is kept: one every ``MARK_TOKENS`` tokens, or every block where blocks are wider. A prefix is then
found to within a mark, at a fraction of the memory and of the look-ups.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, overload

__all__ = ["MARK_TOKENS", "Keys", "Memory", "Remembered", "mark_step", "marks"]

MARK_TOKENS = 64


class Keys(Protocol):
    """Block keys in order, made when they are looked at."""

    def __len__(self) -> int: ...

    @overload
    def __getitem__(self, block: int, /) -> int: ...

    @overload
    def __getitem__(self, block: slice, /) -> Sequence[int]: ...


class Remembered(Protocol):
    """One prompt in a memory."""

    def prefilled(self, *, now: float) -> None:
        """Its first token is there."""
        ...

    def forget(self) -> None:
        """The engine did not take it: nothing of it will be cached."""
        ...


class Memory(Protocol):
    """One lane's memory of what was sent to it. Times are handed in."""

    def __len__(self) -> int: ...

    def __contains__(self, key: int) -> bool:
        """Whether a prompt with that key at a mark is remembered, perhaps for no longer."""
        ...

    def remember(self, keys: Keys, *, width: int, now: float) -> Remembered:
        """A prompt with these block keys was sent now."""
        ...

    def match(self, keys: Keys, *, width: int, now: float, known: int = 0) -> int:
        """Leading tokens of a prompt with these keys that a remembered prompt shares; 0 where not above ``known``."""
        ...

    def clear(self) -> None:
        """The engine behind the lane is another one now."""
        ...


def mark_step(width: int) -> int:
    """Blocks from one remembered key to the next."""
    return max(1, MARK_TOKENS // width)


def marks(blocks: int, width: int, *, most: int, beyond: int = 0) -> range:
    """Which blocks' keys are remembered, of a prompt of so many; at most ``most``, and not of the first ``beyond``."""
    step = mark_step(width)
    first = beyond // step
    return range((first + 1) * step - 1, min(blocks, step * most), step)
