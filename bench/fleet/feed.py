"""What one engine tells: its event batches on the wire, numbered and logged, and what a replay is answered with.

Batches are the real bytes, and the log is the publisher's own. Its sessions and threads are left out: a replay is one
answer here, by the rule that a request from before the log gets what is held now in the place of what is forgotten.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bench.fleet.clock import VirtualClock
from contract.events import AllBlocksCleared, Dialect, Event, encode_batch
from contract.framing import Frame
from publisher.replay_log import ReplayLog

__all__ = ["Feed"]

Receive = Callable[[Frame], None]
TOPIC = b""


class Feed:
    """One lane's publisher. ``held`` describes the cache as of the last batch published."""

    def __init__(self, clock: VirtualClock, *, log_batches: int, held: Callable[[], Sequence[Event]]) -> None:
        self.listeners: list[Receive] = []
        self.up = True
        self.restarts = 0
        self._clock = clock
        self._held = held
        self._log_batches = log_batches
        self._log = self._new_log()

    def publish(self, events: Sequence[Event]) -> None:
        """Number a batch, and hand it to everybody who listens; who did not from the first batch on never does."""
        if not self.listeners:
            return
        self._log.append(self._encode(events))
        for seq, payload in self._log.take_live(1):
            for receive in self.listeners:
                receive(Frame(TOPIC, seq, payload))

    def replay(self, start: int) -> list[Frame]:
        """Everything from batch ``start`` on, or a snapshot where the log does not reach back so far."""
        log = self._log
        if start < log.first_seq:
            payload = self._encode([AllBlocksCleared(), *self._held()])
            return [Frame(TOPIC, log.next_seq - 1, payload)]
        batches = log.read(start, stop=log.next_seq, limit=log.next_seq)
        return [Frame(TOPIC, seq, payload) for seq, payload in batches]

    def restart(self) -> None:
        """Another process publishes from here on: numbers begin again, and nothing is remembered."""
        self.restarts += 1
        self._log = self._new_log()

    def _new_log(self) -> ReplayLog:
        # Everybody is handed a batch as it is published, so the live queue holds one at most.
        return ReplayLog(keep=self._log_batches, queue_limit=1)

    def _encode(self, events: Sequence[Event]) -> bytes:
        return encode_batch(events, ts=self._clock.now, dp_rank=0, dialect=Dialect.SGLANG)
