"""The publisher of one lane: event batches in, numbered and encoded, out on a live stream and on request again.

An engine makes one for every KV cache it has (one a data-parallel rank; DCP adds none) and calls ``publish`` after
every step. Batches are encoded before they are numbered, so an event the wire cannot carry burns no number; they are
numbered before they are queued, so whatever the live stream leaves out is a visible gap that a replay can fill.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from copy import copy

from contract.endpoint import binds
from contract.events import AllBlocksCleared, Dialect, Event
from contract.framing import Frame
from contract.kv_events_config import KVEventsConfig
from publisher.counters import PublisherCounters
from publisher.encoder import BatchEncoder
from publisher.errors import PublisherError
from publisher.outbox import Outbox
from publisher.replay_log import ReplayLog
from publisher.sessions import ReplayLimits, ReplaySessions
from publisher.snapshot import Snapshot, SnapshotDesk
from publisher.transport import Context, Sockets, Transport
from publisher.wakeup import Wakeup

__all__ = ["EventPublisher"]

logger = logging.getLogger(__name__)

ZMQ = "zmq"
DEFAULT_LIMITS = ReplayLimits()


class EventPublisher:
    """Publishes the KV events of one data-parallel rank. Any thread may call any method; none of them blocks."""

    def __init__(
        self,
        config: KVEventsConfig,
        *,
        dp_rank: int = 0,
        dialect: Dialect = Dialect.SGLANG,
        snapshot: Callable[[], Snapshot] | None = None,
        clock: Callable[[], float] = time.time,
        limits: ReplayLimits = DEFAULT_LIMITS,
        context: Context | None = None,
    ) -> None:
        """Bind (or connect, see ``contract.endpoint.binds``) now, and start sending.

        ``snapshot`` is asked, on a thread of its own, when a replay reaches further back than the log. ``clock`` stamps
        the batches, in seconds since 1970. ``context`` is a ZMQ context to share, which ``inproc://`` needs; its owner
        terminates it.

        Raises:
            PublisherError: not a ZMQ config, or an endpoint that cannot be used; nothing is left open.
        """
        assert dp_rank >= 0, f"dp_rank must not be negative, got {dp_rank}"
        if config.publisher != ZMQ:
            raise PublisherError(f"publisher {config.publisher!r} is not {ZMQ!r}, the only one there is")
        self._counters = PublisherCounters()
        self._snapshot = snapshot
        self._encoder = BatchEncoder(dp_rank=dp_rank, dialect=dialect, clock=clock, counters=self._counters)
        self._topic = config.topic.encode()
        sockets = Sockets(config, dp_rank=dp_rank, replay_queue=limits.queue, context=context)
        _warn_if_nobody_listens(config, sockets.endpoint)
        self.endpoint = sockets.endpoint
        self.replay_endpoint = sockets.replay_endpoint
        wakeup = Wakeup()
        log = ReplayLog(keep=config.buffer_steps, queue_limit=config.max_queue_size)
        self._outbox = Outbox(log, counters=self._counters, wakeup=wakeup)
        self._transport = Transport(
            sockets,
            topic=self._topic,
            outbox=self._outbox,
            sessions=self._sessions(limits, wakeup),
            wakeup=wakeup,
            counters=self._counters,
        )

    def _sessions(self, limits: ReplayLimits, wakeup: Wakeup) -> ReplaySessions:
        desk = SnapshotDesk(self._take_snapshot, patience=limits.snapshot_seconds, notify=wakeup.set)
        return ReplaySessions(
            self._outbox,
            topic=self._topic,
            counters=self._counters,
            limits=limits,
            snapshots=None if self._snapshot is None else desk,
        )

    @property
    def last_seq(self) -> int:
        """Number of the newest batch, -1 before the first."""
        return self._outbox.next_seq - 1

    @property
    def counters(self) -> PublisherCounters:
        """The totals as they stand now."""
        return copy(self._counters)

    @property
    def alive(self) -> bool:
        """Whether events leave at all: false once closed, or if the sender has failed (which is logged)."""
        return self._transport.alive

    def publish(self, events: Sequence[Event]) -> None:
        """Send one batch; an empty one is nothing. Costs an encoding, and never waits for a peer.

        Raises:
            PublisherError: the publisher is closed.
        """
        payload = self._encoder.encode(events)
        if payload is not None:
            self._outbox.append(payload)

    def close(self, timeout: float = 1.0) -> None:
        """Send what still waits, for ``timeout`` seconds at most, and close the sockets. A second call does nothing."""
        self._transport.close(timeout)

    def _take_snapshot(self) -> Frame:
        """What the engine holds, as one batch in the place of all batches up to the one it was taken after."""
        assert self._snapshot is not None, "asked for a snapshot without a hook"
        snapshot = self._snapshot()
        if not 0 <= snapshot.seq <= self.last_seq:
            raise PublisherError(f"the snapshot's batch {snapshot.seq} is outside [0, {self.last_seq}]")
        payload = self._encoder.encode([AllBlocksCleared(), *snapshot.events])
        assert payload is not None, "AllBlocksCleared can always be encoded"
        return Frame(self._topic, snapshot.seq, payload)


def _warn_if_nobody_listens(config: KVEventsConfig, endpoint: str) -> None:
    if config.bind is None and not binds(config.endpoint, None):
        logger.warning(
            'events go to %s by connecting, so a consumer must bind there or nobody listens; "bind": true binds here',
            endpoint,
        )
