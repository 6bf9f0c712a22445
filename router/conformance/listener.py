"""Watches one publisher off the network, as a consumer would: subscribes, waits, and asks its replay endpoint.

A shell: it keeps frames as they come and judges nothing. Frames must be seen before anything is made of them, which is
why this is no ``Subscriber``: that one repairs and drops what it gets.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence

import msgspec
import zmq
import zmq.asyncio
from zmq.utils.monitor import recv_monitor_message

from contract.endpoint import needs_ipv6
from contract.framing import END_SEQ, encode_seq, replay_request
from router.conformance.observation import Asked, LiveMessage, Observation, ReplaySession

__all__ = ["ListenError", "Target", "Watch", "WatchLimits"]

_BEYOND = 1_000_000
"""How far beyond the newest number seen no batch will be by the time that one is asked for."""


class ListenError(Exception):
    """An endpoint that ZMQ cannot connect to; the message names it."""


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """Where the publisher is. ``topic`` is a prefix; an empty one takes everything."""

    endpoint: str
    replay_endpoint: str | None = None
    topic: str = ""


class WatchLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds and times; seconds unless the name says otherwise.

    ``reply`` is the longest wait for the next answer of a replay, ``grace`` the wait for anything behind its end, which
    must not come. Of one socket at most ``messages`` messages or ``bytes`` bytes are kept.
    """

    connect: float = 5.0
    reply: float = 2.0
    grace: float = 0.2
    messages: int = 200_000
    bytes: int = 512 * 2**20


class _Kept:
    """Messages of one socket, up to the bound."""

    def __init__(self, limits: WatchLimits) -> None:
        self._limits = limits
        self._bytes = 0
        self.messages: list[LiveMessage] = []

    @property
    def full(self) -> bool:
        return len(self.messages) >= self._limits.messages or self._bytes >= self._limits.bytes

    def add(self, frames: Sequence[bytes], *, connection: int = 1) -> None:
        self._bytes += sum(map(len, frames))
        self.messages.append(LiveMessage(frames, connection))


class Watch:
    """One watching of one publisher."""

    def __init__(self, target: Target, limits: WatchLimits | None = None) -> None:
        self._target = target
        self._limits = limits or WatchLimits()
        self._context = zmq.asyncio.Context()
        self._live = _Kept(self._limits)
        self._connections = 0
        self._connected = asyncio.Event()
        self._enough = asyncio.Event()
        self._sessions: list[ReplaySession] = []

    @property
    def heard(self) -> int:
        """Live messages so far."""
        return len(self._live.messages)

    def stop(self) -> None:
        """That is enough: ask for the last replays, and end."""
        self._enough.set()

    async def run(self, seconds: float) -> Observation:
        """Everything that the publisher shows in ``seconds``, or until told to stop, and how it answers replays.

        Raises:
            ListenError: an endpoint is none that ZMQ can connect to.
        """
        try:
            async with self._subscribed():
                reached = await _set_within(self._limits.connect, self._connected)
                if reached:
                    await self._watch(seconds)
        finally:
            self._context.destroy(linger=0)
        return Observation(reached=reached, live=self._live.messages, sessions=self._sessions, full=self._live.full)

    async def _watch(self, seconds: float) -> None:
        """Live for the time given, with a replay of everything before it; the other replays after it."""
        until = time.monotonic() + seconds
        answers = self._target.replay_endpoint is not None and await self._ask(Asked.HISTORY, 0)
        await _set_within(max(0.0, until - time.monotonic()), self._enough)
        if answers:
            await self._ask(Asked.ALL, 0)
            newest = self._newest()
            await self._ask(Asked.NEWEST, max(newest, 0))
            await self._ask(Asked.BEYOND_END, newest + _BEYOND)
            await self._ask(Asked.MALFORMED, newest + _BEYOND)

    def _newest(self) -> int:
        """The highest number among the frames that have one."""
        live = [message.frames[1] for message in self._live.messages if len(message.frames) == 3]
        replayed = [reply[-2] for session in self._sessions for reply in session.replies if len(reply) >= 2]
        numbers = [int.from_bytes(raw, "big") for raw in live + replayed if len(raw) == 8 and raw[0] < 0x80]
        return max(numbers, default=-1)

    # Live

    @contextlib.asynccontextmanager
    async def _subscribed(self) -> AsyncIterator[None]:
        sub = self._socket(zmq.SUB, self._target.endpoint)
        sub.subscribe(self._target.topic)
        monitor = sub.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)
        _connect(sub, self._target.endpoint)
        tasks = [asyncio.create_task(self._count_connections(monitor)), asyncio.create_task(self._receive(sub))]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            sub.disable_monitor()
            sub.close(linger=0)

    async def _count_connections(self, monitor: zmq.asyncio.Socket) -> None:
        while True:
            await recv_monitor_message(monitor)
            self._connections += 1
            self._connected.set()

    async def _receive(self, sub: zmq.asyncio.Socket) -> None:
        while not self._live.full:
            frames = await sub.recv_multipart()
            self._live.add(frames, connection=self._connections)
        self._enough.set()

    # Replay

    async def _ask(self, asked: Asked, start: int) -> bool:
        """One request on a socket of its own, and its answers; whether the end marker came."""
        endpoint = self._target.replay_endpoint
        assert endpoint is not None, "only a publisher with a replay endpoint is asked"
        kept, live_before = _Kept(self._limits), len(self._live.messages)
        with contextlib.closing(self._socket(zmq.DEALER, endpoint)) as dealer:
            _connect(dealer, endpoint)
            for request in _requests(asked, start):
                await dealer.send_multipart(request)
            ended = await self._answers(dealer, kept)
        session = ReplaySession(
            asked=asked,
            start=start,
            replies=[message.frames for message in kept.messages],
            live_before=live_before,
            live_after=len(self._live.messages),
            silent=not ended and not kept.full,
        )
        self._sessions.append(session)
        return ended

    async def _answers(self, dealer: zmq.asyncio.Socket, kept: _Kept) -> bool:
        ended = False
        while not kept.full:
            try:
                async with asyncio.timeout(self._limits.grace if ended else self._limits.reply):
                    frames = await dealer.recv_multipart()
            except TimeoutError:
                break
            kept.add(frames)
            ended |= len(frames) >= 2 and frames[-2] == END_SEQ
        return ended

    def _socket(self, kind: int, endpoint: str) -> zmq.asyncio.Socket:
        socket = self._context.socket(kind)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.RCVHWM, 0)  # a message dropped here would look like one that was never sent
        socket.setsockopt(zmq.IPV6, needs_ipv6(endpoint))
        return socket


def _connect(socket: zmq.asyncio.Socket, endpoint: str) -> None:
    try:
        socket.connect(endpoint)
    except zmq.ZMQError as error:
        socket.close(linger=0)
        raise ListenError(f"cannot connect to {endpoint}: {error}") from None


def _requests(asked: Asked, start: int) -> list[list[bytes]]:
    """The messages of a request. Malformed ones lack the delimiter, or have a frame too many."""
    good = replay_request(start)
    return [[encode_seq(0)], [*replay_request(0), b"?"], good] if asked is Asked.MALFORMED else [good]


async def _set_within(seconds: float, event: asyncio.Event) -> bool:
    try:
        async with asyncio.timeout(seconds):
            return await event.wait()
    except TimeoutError:
        return False
