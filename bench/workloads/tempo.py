"""When the turns of recorded sessions are asked: sessions start at random, and keep their own pace, within a bound.

Recordings of agents say what follows what, and hardly how many run at a time. So sessions start as a Poisson process,
in the order of the recording, and each turn follows the one before after the recorded pause, or ``MAX_PAUSE``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import heappop, heappush
from random import Random

import msgspec

from bench.workloads.request import Ask

__all__ = ["MAX_PAUSE", "Turn", "timed"]

MAX_PAUSE = 60.0
"""Seconds; a longer pause is somebody who went away, and says nothing of a fleet."""


class Turn(msgspec.Struct, frozen=True):
    """One request of a session, ``pause`` seconds after the one before."""

    pause: float
    blocks: tuple[int, ...]
    tokens: int
    output_tokens: int


def timed(sessions: Iterable[Iterable[Turn]], *, mean_gap: float, seed: int) -> Iterator[Ask]:
    """Turns of all sessions by time; only sessions that have begun are open. ``mean_gap``: seconds between starts."""
    random = Random(seed)
    following: list[tuple[float, int, Turn, Iterator[Turn]]] = []
    start = 0.0
    for session, turns in enumerate(sessions):
        start += random.expovariate(1.0 / mean_gap)
        while following and following[0][0] <= start:
            yield _next(following)
        _schedule(following, start, session, iter(turns))
    while following:
        yield _next(following)


def _next(following: list[tuple[float, int, Turn, Iterator[Turn]]]) -> Ask:
    at, session, turn, rest = heappop(following)
    _schedule(following, at, session, rest)
    return Ask(at, turn.blocks, turn.tokens, turn.output_tokens, session)


def _schedule(
    following: list[tuple[float, int, Turn, Iterator[Turn]]], after: float, session: int, rest: Iterator[Turn]
) -> None:
    turn = next(rest, None)
    if turn is not None:
        heappush(following, (after + min(turn.pause, MAX_PAUSE), session, turn, rest))
