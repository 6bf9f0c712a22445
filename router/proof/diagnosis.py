"""Judges replicas: gathers the facts of each lane, keeps since when a fault holds, and logs it once when it appears."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection

from router.fleet.lane import Lane
from router.fleet.replica import Replica
from router.intake.index import BlockIndex
from router.proof.facts import LaneFacts
from router.proof.fault import Code, Fault, Sighting
from router.proof.fault_book import FaultBook
from router.proof.faults import lane_faults
from router.proof.stream_faults import agreement_missing

__all__ = ["NO_STREAM", "Diagnosis"]

_LOG = logging.getLogger(__name__)
NO_STREAM = "off"


class Diagnosis:
    """One router's. ``clock`` tells seconds since the epoch, ``timer`` those that outcomes are recorded with.

    ``expected`` are no faults here: a router that chooses without events need not complain that none come.
    """

    def __init__(
        self,
        index: BlockIndex,
        *,
        expected: Collection[Code] = (),
        clock: Callable[[], float] = time.time,
        timer: Callable[[], float] = time.monotonic,
    ) -> None:
        self._index = index
        self._expected = frozenset(expected)
        self._clock = clock
        self._timer = timer
        self._book = FaultBook()

    def review(self, replica: Replica) -> list[Sighting]:
        """Everything that is wrong with a replica now; what was not there before is logged. None where it is away."""
        appeared = self._book.enter(replica.url, self._judge(replica), now=self._clock())
        for fault in appeared:
            _LOG.warning("%s: %s: %s. To do: %s", replica.url, fault.code, fault.detail, fault.advice)
        return self._book.faults(replica.url)

    def forget(self, url: str) -> None:
        """The replica has left the fleet."""
        self._book.forget(url)

    def _judge(self, replica: Replica) -> list[Fault]:
        if not replica.healthy or replica.identity is None:
            return []
        disagreement = replica.identity.disagreement
        faults = [] if disagreement is None else [agreement_missing(disagreement)]
        faults += [fault for lane in replica.lanes for fault in lane_faults(self._facts(replica, lane))]
        return [fault for fault in faults if fault.code not in self._expected]

    def _facts(self, replica: Replica, lane: Lane) -> LaneFacts:
        status, identity = lane.status, replica.identity
        return LaneFacts(
            dp_rank=lane.dp_rank,
            engine="" if identity is None else identity.engine,
            endpoint=None if lane.stream is None else lane.stream.address.endpoint,
            no_events=lane.no_events,
            stream_state=NO_STREAM if status is None else status.state,
            stream_reason=None if status is None else status.reason,
            batches=0 if status is None else status.batches,
            lost=0 if status is None else status.lost,
            complete=status is not None and status.known_from == 0,
            advertised_width=lane.advertised_block_size,
            emitted_widths=self._index.stats(lane.handle).widths_seen,
            tally=lane.tally,
            first_blocks=self._index.first_blocks(lane.handle),
            now=self._timer(),
        )
