"""A request as a simulation sees it, and a workload: requests in the order of their times.

Knows no file and no format. Content is told by block ids: two requests share a prefix exactly where their ids are equal
from the first one on, so a path of ids is a path in a prefix tree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import msgspec

__all__ = ["Ask", "Rereadable", "Workload"]


class Ask(msgspec.Struct, frozen=True):
    """One request: ``at`` in seconds, ``tokens`` of input.

    ``blocks`` are ids (u32) of the full blocks; the tokens behind the last of them make no block and are cached by
    nobody. ``session`` is the conversation that it is part of, where the source tells.
    """

    at: float
    blocks: tuple[int, ...]
    tokens: int
    output_tokens: int
    session: int | None = None


@dataclass(frozen=True)
class Workload:
    """``asks`` in the order of their times; each iteration starts anew. A full block is ``block_tokens`` tokens."""

    name: str
    block_tokens: int
    asks: Iterable[Ask]


class Rereadable:
    """Requests that are read once more whenever somebody iterates, so that nothing need be kept."""

    def __init__(self, read: Callable[[], Iterator[Ask]]) -> None:
        self._read = read

    def __iter__(self) -> Iterator[Ask]:
        return self._read()
