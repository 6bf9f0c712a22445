"""One lane's recorded frames on sockets, as its engine published them: live ones on a PUB, all of them by replay.

A shell: what to send, and when, is told. The log is that of one engine: a number that goes back begins another one's.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

import zmq
import zmq.asyncio

from contract.endpoint import needs_ipv6
from contract.framing import (
    Frame,
    FramingError,
    parse_replay_request,
    pub_frames,
    replay_end,
    replay_reply,
)

__all__ = ["Context", "Publication", "PublishError", "publications"]

Context = zmq.asyncio.Context
LOGGED_BATCHES = 10_000
SEND_QUEUE = 100_000
_TRIES = 50
"""Ports in a row that are chosen by the system may turn out to be taken; so often others are tried."""


class PublishError(Exception):
    """Sockets that cannot be bound; the message names the address."""


class Publication:
    """Sockets of one lane, bound. ``subscribed`` is set once somebody listens."""

    def __init__(self, context: Context, *, endpoint: str, replay_endpoint: str) -> None:
        self.subscribed = asyncio.Event()
        self.sent = 0
        self._log: deque[Frame] = deque(maxlen=LOGGED_BATCHES)
        self._sockets: list[zmq.asyncio.Socket] = []
        try:
            self._pub = self._bound(context, zmq.XPUB, endpoint)
            self._router = self._bound(context, zmq.ROUTER, replay_endpoint)
        except zmq.ZMQError:
            self.close()
            raise
        self.port, self.replay_port = _port(self._pub), _port(self._router)

    async def send(self, frame: Frame, *, live: bool) -> None:
        """Take a frame into the log, and send it where it was once heard live."""
        if self._log and frame.seq <= self._log[-1].seq:
            self._log.clear()
        self._log.append(frame)
        if live:
            self.sent += 1
            await self._pub.send_multipart(pub_frames(frame))

    async def run(self) -> None:
        """Answer replay requests, and see who subscribes, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._see_subscribers())
            tasks.create_task(self._answer())

    def close(self) -> None:
        """Close the sockets."""
        for socket in self._sockets:
            socket.close(linger=0)

    async def _see_subscribers(self) -> None:
        while True:
            message = await self._pub.recv()
            if message.startswith(b"\x01"):
                self.subscribed.set()

    async def _answer(self) -> None:
        while True:
            try:
                identity, start = parse_replay_request(await self._router.recv_multipart())
            except FramingError:
                continue  # another protocol's, which engines leave unanswered too
            for frame in list(self._log):
                if frame.seq >= start:
                    await self._router.send_multipart([identity, *replay_reply(frame)])
            await self._router.send_multipart([identity, *replay_end()])

    def _bound(self, context: Context, kind: int, endpoint: str) -> zmq.asyncio.Socket:
        socket = context.socket(kind)
        self._sockets.append(socket)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.SNDHWM, SEND_QUEUE)
        socket.setsockopt(zmq.IPV6, needs_ipv6(endpoint))
        socket.bind(endpoint)
        return socket


def _port(socket: zmq.asyncio.Socket) -> int:
    bound = socket.getsockopt(zmq.LAST_ENDPOINT)
    assert isinstance(bound, bytes), "ZMQ names endpoints in bytes"
    return int(bound.rpartition(b":")[2].rstrip(b"\0"))


@contextmanager
def publications(
    context: Context, *, host: str, port: int, replay_port: int, count: int
) -> Iterator[list[Publication]]:
    """One lane after the other on ports in a row, from these on; 0 lets the system choose.

    Raises:
        PublishError: an address cannot be bound, or so many ports in a row cannot be found.
    """
    bound = _bind(context, host=host, port=port, replay_port=replay_port, count=count)
    try:
        yield bound
    finally:
        for one in bound:
            one.close()


def _bind(context: Context, *, host: str, port: int, replay_port: int, count: int) -> list[Publication]:
    trouble = ""
    for _ in range(1 if port else _TRIES):
        bound: list[Publication] = []
        try:
            while len(bound) < count:
                base, replay_base = (bound[0].port, bound[0].replay_port) if bound else (port, replay_port)
                here, there = (base and base + len(bound), replay_base and replay_base + len(bound))
                bound.append(
                    Publication(context, endpoint=f"tcp://{host}:{here}", replay_endpoint=f"tcp://{host}:{there}")
                )
        except (zmq.ZMQError, OverflowError) as error:
            trouble = str(error)
            for one in bound:
                one.close()
        else:
            return bound
    raise PublishError(f"cannot bind {count} ports in a row at tcp://{host}:{port}: {trouble}")
