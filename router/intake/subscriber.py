"""One lane's event stream off the network: a SUB socket, a replay socket where one is wanted, and the stream's orders.

A shell: ``stream`` decides, ``index`` holds, this carries frames between sockets and them. It subscribes before it asks
for a replay, asks on a fresh DEALER each time with a deadline between answers, and looks after every reconnect, because
an engine that was restarted behind its endpoint is first of all a connection that came back.

All frames of a lane pass under one lock, so that what one decision orders is done before the next is taken. What has
come in meanwhile is taken in one turn, within a bound; then the loop is free for others. Many subscribers run in one
event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine, Sequence

import msgspec
import zmq
import zmq.asyncio
from zmq.utils.monitor import recv_monitor_message

from contract.descriptor import LaneAddress
from contract.endpoint import needs_ipv6
from contract.events import EventBatch
from contract.framing import Frame, FramingError, parse_live, parse_replay_reply, replay_request
from router.intake.index import BlockIndex, LaneHandle
from router.intake.slices import slices
from router.intake.stream import Action, Apply, AskReplay, Clear, LaneStream
from router.intake.stream_report import StreamState, SubscriberLimits, SubscriberStatus

__all__ = ["Context", "SubscribeError", "Subscriber", "SubscriberLimits", "SubscriberStatus"]

Context = zmq.asyncio.Context
"""ZMQ's threads, for several subscribers to share."""

_LOG = logging.getLogger(__name__)
_BATCHES_A_TURN = 16
_CONNECTION_EVENTS = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED


class SubscribeError(Exception):
    """An endpoint that cannot be subscribed to; the message names it."""


class _ReplayError(Exception):
    """An attempt at a replay that came to nothing; the message says why."""


class Subscriber:
    """Keeps one lane of the index equal to what its engine publishes. ``start`` once, ``close`` once."""

    def __init__(
        self,
        *,
        address: LaneAddress,
        topic: str,
        index: BlockIndex,
        handle: LaneHandle,
        limits: SubscriberLimits | None = None,
        context: zmq.asyncio.Context | None = None,
        clock: Callable[[], float] = time.time,
        stream: LaneStream | None = None,
    ) -> None:
        """``topic`` is a prefix; an empty one takes everything. A ``context`` given is shared and stays open.

        ``stream`` is handed in, fresh, by whoever wants to see what it is told.
        """
        self._address = address
        self._topic = topic
        self._index = index
        self._handle = handle
        self._limits = limits or SubscriberLimits()
        self._owns_context = context is None
        self._context = context or zmq.asyncio.Context()
        self._clock = clock
        self._stream = stream or LaneStream(can_replay=address.replay_endpoint is not None, limits=self._limits.stream)
        self._lock = asyncio.Lock()
        self._wanted: AskReplay | None = None
        self._wake = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._sub: zmq.asyncio.Socket | None = None
        self._monitor: zmq.asyncio.Socket | None = None
        self._failure: str | None = None
        self._connected = False
        self._connects = 0
        self._malformed = 0
        self._settling = False

    @property
    def status(self) -> SubscriberStatus:
        """The lane's stream now."""
        fields = msgspec.structs.asdict(self._stream.status)
        if self._failure is not None:
            fields |= {"state": StreamState.UNTRUSTED, "reason": self._failure}
        return SubscriberStatus(**fields, connected=self._connected, connects=self._connects, malformed=self._malformed)

    @property
    def batches(self) -> int:
        """Batches applied."""
        return self._stream.batches

    async def start(self) -> None:
        """Connect and follow the stream from now on; returns before anything is connected.

        Raises:
            SubscribeError: the endpoint is none that ZMQ can connect to.
        """
        assert self._sub is None, "a subscriber is started once"
        endpoint = self._address.endpoint
        self._sub = self._socket(zmq.SUB, endpoint)
        self._sub.subscribe(self._topic)
        self._monitor = self._sub.get_monitor_socket(_CONNECTION_EVENTS)
        try:
            self._sub.connect(endpoint)
        except zmq.ZMQError as error:
            await self.close()
            raise SubscribeError(f"cannot subscribe to {endpoint}: {error}") from None
        self._spawn("reader", self._read(self._sub))
        self._spawn("monitor", self._watch(self._monitor))
        if self._address.replay_endpoint is not None:
            self._spawn("replay", self._serve_replays())
        if endpoint.startswith("inproc://"):  # which connects at once and has no events to say so
            await self._on_connected()

    async def close(self) -> None:
        """Stop, and close every socket; the lane's blocks stay in the index. A second call does nothing."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        if self._sub is not None and not self._sub.closed:
            self._sub.disable_monitor()
            self._sub.close(linger=0)
        if self._monitor is not None:
            self._monitor.close(linger=0)
        if self._owns_context:
            self._context.destroy(linger=0)

    def _socket(self, kind: int, endpoint: str) -> zmq.asyncio.Socket:
        socket = self._context.socket(kind)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.RCVHWM, self._limits.receive_queue)
        socket.setsockopt(zmq.MAXMSGSIZE, self._limits.message_bytes)
        socket.setsockopt(zmq.IPV6, needs_ipv6(endpoint))
        return socket

    def _spawn(self, name: str, work: Coroutine[None, None, None]) -> None:
        self._tasks.append(asyncio.create_task(self._guard(name, work), name=f"{name} {self._address.endpoint}"))

    async def _guard(self, name: str, work: Coroutine[None, None, None]) -> None:
        """The top of a task: a fault of ours must show on the lane, not vanish with the task."""
        try:
            await work
        except Exception as error:
            self._failure = f"the {name} of {self._address.endpoint} failed: {error!r}"
            _LOG.exception("%s", self._failure)

    # Live

    async def _read(self, sub: zmq.asyncio.Socket) -> None:
        at_hand: zmq.Socket[bytes] = zmq.Socket.shadow(sub)
        while True:
            frames: list[bytes] | None = await sub.recv_multipart()
            left = _BATCHES_A_TURN
            async with self._lock:
                while frames is not None:
                    await self._perform(self._heard(frames))
                    left -= 1
                    frames = _next_of(at_hand) if left else None
            await asyncio.sleep(0)

    def _heard(self, frames: Sequence[bytes]) -> Sequence[Action]:
        try:
            frame = parse_live(frames)
        except FramingError as error:
            self._note_malformed(error)
            return ()
        return self._stream.live(frame, now=self._clock())

    async def _watch(self, monitor: zmq.asyncio.Socket) -> None:
        while True:
            event = await recv_monitor_message(monitor)
            self._connected = event["event"] == zmq.EVENT_HANDSHAKE_SUCCEEDED
            if self._connected:
                await self._on_connected()

    async def _on_connected(self) -> None:
        self._connected = True
        self._connects += 1
        async with self._lock:
            await self._perform(self._stream.connected())
        self._settling = True
        self._wake.set()

    # Orders

    async def _perform(self, actions: Sequence[Action]) -> None:
        for action in actions:
            match action:
                case Apply(batch):
                    await self._apply(batch)
                case Clear():
                    self._index.clear(self._handle)
                case AskReplay():
                    self._wanted = action
                    self._wake.set()

    async def _apply(self, batch: EventBatch) -> None:
        for place, piece in enumerate(slices(batch)):
            if place:
                await asyncio.sleep(0)
            self._index.apply(self._handle, piece)

    def _note_malformed(self, error: FramingError) -> None:
        self._malformed += 1
        if self._malformed == 1:
            _LOG.warning("%s sends frames of another protocol, which are counted: %s", self._address.endpoint, error)

    # Replay

    async def _serve_replays(self) -> None:
        """Answer what the stream asks for; in between, look again after a connect, and try to recover lost trust."""
        pause = self._limits.recover
        while True:
            trusted = self._stream.trusted
            pause = self._limits.recover if trusted else pause
            if not await self._woken(self._limits.settle if self._settling else None if trusted else pause):
                pause = pause if self._settling else min(2 * pause, self._limits.recover_most)
                self._settling = False
                async with self._lock:
                    await self._perform(self._stream.check())
            while self._wanted is not None:
                await self._replay()

    async def _woken(self, within: float | None) -> bool:
        try:
            async with asyncio.timeout(within):
                await self._wake.wait()
        except TimeoutError:
            return False
        self._wake.clear()
        return True

    async def _replay(self) -> None:
        """Try for the replay wanted now until it ends, is replaced by another, or has failed too often."""
        wanted, why = self._wanted, ""
        for attempt in range(self._limits.attempts):
            if attempt:
                await asyncio.sleep(self._limits.backoff * 2 ** (attempt - 1))
                if self._wanted is not wanted:
                    return
                wanted = self._wanted = self._stream.replay_again()
            assert wanted is not None, "a replay is tried only while one is wanted"
            try:
                await self._attempt(wanted)
                return
            except _ReplayError as error:
                why = str(error)
        async with self._lock:
            self._wanted = None
            await self._perform(self._stream.replay_failed(why))

    async def _attempt(self, wanted: AskReplay) -> None:
        """One request on a fresh socket, and its answers until the end, or until something else is wanted.

        Raises:
            _ReplayError: no answer within the deadline, or none of this protocol.
        """
        endpoint = self._address.replay_endpoint
        assert endpoint is not None, "a stream without a replay endpoint asks for none"
        with contextlib.closing(self._socket(zmq.DEALER, endpoint)) as dealer:
            try:
                dealer.connect(endpoint)
            except zmq.ZMQError as error:
                raise _ReplayError(f"cannot ask {endpoint} for a replay: {error}") from None
            await dealer.send_multipart(replay_request(wanted.start))
            while self._wanted is wanted:
                reply = await self._reply(dealer, endpoint)
                async with self._lock:
                    await self._take_reply(wanted, reply)

    async def _reply(self, dealer: zmq.asyncio.Socket, endpoint: str) -> Frame | None:
        try:
            async with asyncio.timeout(self._limits.reply_deadline):
                return parse_replay_reply(await dealer.recv_multipart())
        except TimeoutError:
            raise _ReplayError(f"{endpoint} did not answer a replay within {self._limits.reply_deadline:g} s") from None
        except FramingError as error:
            self._note_malformed(error)
            raise _ReplayError(f"{endpoint} answered a replay in another protocol: {error}") from None

    async def _take_reply(self, wanted: AskReplay, reply: Frame | None) -> None:
        if self._wanted is not wanted:
            return
        if reply is None:
            self._wanted = None
            await self._perform(self._stream.replay_ended())
        else:
            await self._perform(self._stream.replayed(reply))
        await asyncio.sleep(0)


def _next_of(socket: zmq.Socket[bytes]) -> list[bytes] | None:
    """A message that is there already, or None. Frames tell whether more follow; asking the socket is slow."""
    frames, more = [], True
    try:
        while more:
            frame = socket.recv(zmq.NOBLOCK, copy=False)
            frames.append(frame.bytes)
            more = frame.more
    except zmq.Again:
        return None
    return frames
