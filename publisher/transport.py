"""The sockets of one lane, and the one thread that uses them: live batches first, then replays, then rest.

The only module of the publisher that knows ZMQ. It decides nothing about what is sent: the outbox says what goes out
live, the sessions say what goes to which replay reader.
"""

from __future__ import annotations

import errno
import logging
import math
import threading
import time
from collections.abc import Sequence
from typing import TypeAlias

import zmq

from contract.endpoint import EndpointError, binds, for_rank, is_wildcard, needs_ipv6, parse_tcp
from contract.framing import Frame, FramingError, parse_replay_request, pub_frames
from contract.kv_events_config import KVEventsConfig
from publisher.complaint import Complaint
from publisher.counters import PublisherCounters
from publisher.errors import PublisherError
from publisher.outbox import Outbox
from publisher.sessions import Delivery, ReplaySessions
from publisher.wakeup import Wakeup

__all__ = ["Context", "Sockets", "Transport"]

logger = logging.getLogger(__name__)

Context: TypeAlias = "zmq.Context[zmq.Socket[bytes]]"
Socket: TypeAlias = "zmq.Socket[bytes]"

LIVE_BURST = 64
REQUEST_BURST = 64
# Bytes one frame from a replay reader may have: a start has eight, and ZMQ's own handshake must fit too.
REQUEST_FRAME_LIMIT = 4096
# What close() waits beyond its timeout, so that a sender which has just used it up can still end.
JOIN_GRACE_SECONDS = 0.5


class Sockets:
    """The sockets of one lane: PUB for live batches and, where the config has a place for it, ROUTER for replays.

    ``endpoint`` and ``replay_endpoint`` (None: no replay) are where peers find them: those of the rank, a port 0
    replaced by the one the system chose.
    """

    def __init__(
        self, config: KVEventsConfig, *, dp_rank: int, replay_queue: int, context: Context | None = None
    ) -> None:
        """Bind or connect; ``replay_queue`` bounds the messages that may wait for one replay reader.

        Raises:
            PublisherError: an endpoint cannot be used. Nothing stays open.
        """
        self._owns_context = context is None
        self._context: Context = context or zmq.Context()
        self.live: Socket = self._context.socket(zmq.PUB)
        self.live.sndhwm = config.hwm
        self.replay: Socket | None = None
        self.replay_endpoint: str | None = None
        try:
            self.endpoint = _open(self.live, config.endpoint, dp_rank=dp_rank, bind=binds(config.endpoint, config.bind))
            if config.replay_endpoint is not None:
                self.replay = self._replay_socket(self._context, replay_queue)
                self.replay_endpoint = _open(self.replay, config.replay_endpoint, dp_rank=dp_rank, bind=True)
        except PublisherError:
            self.close(linger=0)
            raise

    @staticmethod
    def _replay_socket(context: Context, queue: int) -> Socket:
        socket: Socket = context.socket(zmq.ROUTER)
        socket.sndhwm = queue
        # Without it a ROUTER drops what a full reader cannot take; with it, sending says so.
        socket.router_mandatory = 1
        socket.maxmsgsize = REQUEST_FRAME_LIMIT
        return socket

    def close(self, *, linger: float) -> None:
        """Close what is open. Live batches still under way get ``linger`` seconds, replays none.

        Waits that long at most, and only if the context is ours: one that was lent delivers after this returns.
        """
        self.live.close(linger=math.ceil(linger * 1000))
        if self.replay is not None:
            self.replay.close(linger=0)
        if self._owns_context:
            self._context.term()


def _open(socket: Socket, configured: str, *, dp_rank: int, bind: bool) -> str:
    """Bind or connect a socket to the rank's endpoint; the endpoint as peers see it."""
    verb = "bind" if bind else "connect to"
    try:
        endpoint = for_rank(configured, dp_rank)
        if endpoint.startswith("tcp://") and parse_tcp(endpoint).port == 0 and not bind:
            raise EndpointError("port 0 is for binding")
        socket.ipv6 = needs_ipv6(endpoint)
        if not bind:
            socket.connect(endpoint)
            return endpoint
        socket.bind(endpoint)
    except EndpointError as error:
        raise PublisherError(f"cannot {verb} {configured} at rank {dp_rank}: {error}") from None
    except zmq.ZMQError as error:
        raise PublisherError(f"cannot {verb} {endpoint}: {_cause(error)}") from None
    return _as_bound(endpoint, socket.get_string(zmq.LAST_ENDPOINT))


def _cause(error: zmq.ZMQError) -> str:
    if error.errno == errno.ENODEV:
        return "this machine has no such address or interface"
    return zmq.strerror(error.errno or 0)


def _as_bound(endpoint: str, bound: str) -> str:
    """The bound endpoint, but a wildcard host stays as it was written: peers read it as "where you reached me"."""
    if not endpoint.startswith("tcp://") or not is_wildcard(parse_tcp(endpoint).host):
        return bound
    return f"tcp://{parse_tcp(endpoint).host}:{parse_tcp(bound).port}"


class Transport:
    """The sender thread of one lane. It starts at once, owns the sockets and closes them when it ends."""

    def __init__(
        self,
        sockets: Sockets,
        *,
        topic: bytes,
        outbox: Outbox,
        sessions: ReplaySessions,
        wakeup: Wakeup,
        counters: PublisherCounters,
    ) -> None:
        self._sockets = sockets
        self._topic = topic
        self._outbox = outbox
        self._sessions = sessions
        self._wakeup = wakeup
        self._counters = counters
        self._known_skips = 0
        self._close_by = math.inf
        self._complain_skipped = Complaint(logger, "live events left out, %d batches so far: too many waited")
        self._complain_request = Complaint(logger, "replay request not answered, %d so far: %s")
        self._without_replay = zmq.Poller()
        self._without_replay.register(wakeup.fileno(), zmq.POLLIN)
        self._with_replay = zmq.Poller()
        self._with_replay.register(wakeup.fileno(), zmq.POLLIN)
        if sockets.replay is not None:
            self._with_replay.register(sockets.replay, zmq.POLLIN)
        self._thread = threading.Thread(target=self._run, name=f"kv-events {sockets.endpoint}", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether the sender is at work."""
        return self._thread.is_alive()

    def close(self, timeout: float) -> None:
        """Send what is in the outbox and close the sockets, in about ``timeout`` seconds at most."""
        self._close_by = time.monotonic() + timeout
        self._outbox.close()
        self._thread.join(timeout + JOIN_GRACE_SECONDS)

    def _run(self) -> None:
        try:
            while not self._outbox.closed:
                self._turn()
            while self._send_live() and time.monotonic() < self._close_by:
                pass
        except zmq.ContextTerminated:
            logger.warning("events to %s end: the ZMQ context is gone", self._sockets.endpoint)
        except Exception:
            logger.exception("events to %s end: the sender has failed", self._sockets.endpoint)
        finally:
            self._outbox.abandon()
            self._sockets.close(linger=self._grace())
            self._wakeup.close()

    def _grace(self) -> float:
        """Seconds left for closing; none when the sender ends unasked."""
        return max(0.0, self._close_by - time.monotonic()) if math.isfinite(self._close_by) else 0.0

    def _turn(self) -> None:
        self._send_live()
        self._sessions.advance(self._offer, now=time.monotonic())
        self._wait()

    def _send_live(self) -> int:
        """Send one burst of live batches: their number."""
        batches = self._outbox.take_live(LIVE_BURST)
        for seq, payload in batches:
            self._sockets.live.send_multipart(pub_frames(Frame(self._topic, seq, payload)))
        self._counters.sent += len(batches)
        if self._counters.skipped > self._known_skips:
            self._known_skips = self._counters.skipped
            self._complain_skipped(self._known_skips)
        return len(batches)

    def _wait(self) -> None:
        """Wait for something to do: a batch, a request, a snapshot, the end, or a session whose time has come."""
        timeout = self._idle_ms() if self._outbox.rest() else 0
        poller = self._with_replay if self._sessions.has_room else self._without_replay
        ready = dict(poller.poll(timeout))
        if self._wakeup.fileno() in ready:
            self._wakeup.clear()
        if self._sockets.replay is not None and self._sockets.replay in ready:
            self._read_requests(self._sockets.replay)

    def _idle_ms(self) -> int | None:
        due_at = self._sessions.due_at
        return None if due_at is None else max(0, math.ceil((due_at - time.monotonic()) * 1000))

    def _read_requests(self, replay: Socket) -> None:
        for _ in range(REQUEST_BURST):
            if not self._sessions.has_room:
                return
            try:
                identity, start = parse_replay_request(replay.recv_multipart(zmq.NOBLOCK))
            except zmq.Again:
                return
            except FramingError as error:
                self._counters.malformed_requests += 1
                self._complain_request(self._counters.malformed_requests, error)
            else:
                self._sessions.open(identity, start, now=time.monotonic())

    def _offer(self, identity: bytes, frames: Sequence[bytes]) -> Delivery:
        """Hand a message to one replay reader's queue, if it has room."""
        assert self._sockets.replay is not None, "a session without a replay socket"
        try:
            self._sockets.replay.send_multipart([identity, *frames], zmq.NOBLOCK)
        except zmq.Again:
            return Delivery.FULL
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            return Delivery.GONE
        return Delivery.SENT
