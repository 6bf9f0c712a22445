"""What is measured: an index in this process, reached through the same few calls whoever wrote it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from bench.index.workload import Stored

__all__ = ["Subject"]


class Subject(Protocol):
    """One index of so many lanes and one block width; ``apply`` takes what ``prepare`` made."""

    def prepare(self, event: Stored) -> Any:
        """An event as it reaches the index; not timed."""

    def apply(self, event: Any) -> None:
        """Take an event in."""

    def keys(self, ids: list[int]) -> Sequence[int]:
        """The names of a prompt's blocks."""

    def look_up(self, keys: Any) -> dict[int, int]:
        """Matched tokens by lane, of a prompt whose blocks have been named before."""

    def match(self, ids: list[int]) -> dict[int, int]:
        """Matched tokens by lane, from token ids."""

    def named(self, ids: list[int]) -> Any:
        """What ``look_up`` takes; not timed."""
