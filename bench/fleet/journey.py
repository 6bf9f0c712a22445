"""One request from its arrival to the end of its answer, however often its engine is lost on the way."""

from __future__ import annotations

import time
from collections.abc import Sequence

from bench.fleet.clock import VirtualClock
from bench.fleet.engine import SimEngine
from bench.fleet.outcome import Outcome
from bench.fleet.router import SimRouter
from bench.fleet.rule import Trip
from bench.workloads.request import Ask

__all__ = ["Journey"]


class Journey:
    """The client of an engine, and the router's hand."""

    def __init__(
        self,
        ask: Ask,
        router: SimRouter,
        engines: Sequence[SimEngine],
        *,
        clock: VirtualClock,
        outcome: Outcome,
        block_tokens: int,
    ) -> None:
        self.ask = ask
        self._router = router
        self._engines = engines
        self._clock = clock
        self._outcome = outcome
        self._block_tokens = block_tokens
        self._answering = False
        self._cached_tokens = 0
        self._arrived = clock.now
        self._trip = self._choose()

    def set_out(self) -> None:
        """Be sent to the engine that was chosen."""
        self._engines[self._trip.replica].submit(self)

    def _choose(self) -> Trip:
        begun = time.process_time_ns()
        trip = self._router.rule.send(self.ask, now=self._clock.now)
        self._outcome.chosen(nanoseconds=time.process_time_ns() - begun)
        return trip

    def first_token(self, *, cached_blocks: int) -> None:
        """See `Client`."""
        now = self._clock.now
        self._answering = True
        self._cached_tokens = cached_blocks * self._block_tokens
        self._trip.first_token(now=now)
        self._outcome.prefilled(
            self.ask,
            replica=self._trip.replica,
            cached_tokens=self._cached_tokens,
            predicted_tokens=self._trip.predicted_tokens,
            seconds=now - self._arrived,
        )

    def ended(self) -> None:
        """See `Client`."""
        self._trip.finished(cached_tokens=self._cached_tokens, now=self._clock.now)

    def lost(self) -> None:
        """See `Client`. A router asks another engine, unless the answer has begun."""
        self._trip.lost()
        if self._answering:
            self._outcome.broken_off += 1
            return
        self._trip = self._choose()
        self.set_out()
