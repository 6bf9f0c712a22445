"""Events to payloads, such that one event the wire cannot carry costs itself and not its batch."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

from contract.events import Dialect, Event, EventEncodeError, encode_batch
from publisher.complaint import Complaint
from publisher.counters import PublisherCounters

__all__ = ["BatchEncoder"]

logger = logging.getLogger(__name__)


class BatchEncoder:
    """Encodes the batches of one lane, on whichever thread asks."""

    def __init__(
        self, *, dp_rank: int, dialect: Dialect, clock: Callable[[], float], counters: PublisherCounters
    ) -> None:
        self._dp_rank = dp_rank
        self._dialect = dialect
        self._clock = clock
        self._counters = counters
        self._counting = threading.Lock()
        self._complain = Complaint(logger, "event left out of its batch, %d so far: %s")

    def encode(self, events: Sequence[Event]) -> bytes | None:
        """Payload of one batch, stamped now; ``None`` if there is no event in it that the wire can carry."""
        if not events:
            return None
        ts = self._clock()
        try:
            return self._batch(events, ts)
        except EventEncodeError:
            carried = [event for event in events if self._can_carry(event)]
            return self._batch(carried, ts) if carried else None

    def _batch(self, events: Sequence[Event], ts: float) -> bytes:
        return encode_batch(events, ts=ts, dp_rank=self._dp_rank, dialect=self._dialect)

    def _can_carry(self, event: Event) -> bool:
        try:
            self._batch([event], 0.0)
        except EventEncodeError as error:
            with self._counting:
                self._counters.encode_errors += 1
            self._complain(self._counters.encode_errors, error)
            return False
        return True
