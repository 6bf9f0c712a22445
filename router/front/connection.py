"""One client's connection: usual requests are served on it as they are, everything else by aiohttp's protocol.

aiohttp's server spends as much on a request as the rest of the router does. A usual head (see `usual_head`) needs none
of that: it is read here, its answer is written here, and one task runs in between. Any other goes to aiohttp's
protocol, which is made when it is needed and has the connection until it has answered: this module knows how to see
that, and no other.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Protocol, cast

from aiohttp import web

from router.front.body import BodyReader
from router.front.client import Client
from router.front.route import Route
from router.front.usual_client import UsualClient
from router.front.usual_head import UsualHead, usual_head

__all__ = ["ClientConnection", "Host", "Serve"]

LINGER_SECONDS = 2.0
"""How long the rest of a refused body is read and dropped, so that the client gets to read the refusal."""

MAX_AHEAD_BYTES = 64 * 1024
"""What a client may send ahead of an answer, before nothing more is read of it."""

Serve = Callable[[Client, Route], Awaitable[None]]
"""Answers a request to a routed endpoint; leaves a ConnectionError where the client is gone."""


class Host(Protocol):
    """Who a connection belongs to. ``draining``: connections end with the requests that are under way."""

    draining: bool
    bodies: BodyReader
    serve: Serve
    make: Callable[[], web.RequestHandler]

    def opened(self, connection: ClientConnection) -> None:
        """A connection was made."""
        ...

    def lost(self, connection: ClientConnection) -> None:
        """It is no more."""
        ...


class ClientConnection(asyncio.Protocol):
    """``head_since`` is when the head that is being waited for began, ``stuck_since`` when the client stopped reading,
    ``idle_since`` when it was last answered here; None: nothing of the kind. ``served_elsewhere``: by aiohttp."""

    transport: asyncio.Transport

    def __init__(self, host: Host) -> None:
        self.head_since: float | None = None
        self.stuck_since: float | None = None
        self.idle_since: float | None = None
        self.served_elsewhere = False
        self.task: asyncio.Task[None] | None = None
        self._host = host
        self._loop = asyncio.get_running_loop()
        self._inner: web.RequestHandler | None = None
        self._client: UsualClient | None = None
        self._at_a_boundary = True
        self._ahead = b""
        self._waits_for_room = False
        self._lingering: asyncio.TimerHandle | None = None
        self._writable: asyncio.Future[None] | None = None

    # What the transport says

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio."""
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is one by what it does, not by its type
        listening = transport.get_extra_info("socket")
        if listening is not None:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self.head_since = self._loop.time()
        self._host.opened(self)

    def data_received(self, data: bytes) -> None:
        """See asyncio."""
        if self._client is not None:
            self._goes_on(self._client, data)
            return
        free = self._inner is None or self._is_free(self._inner)
        head = usual_head(data) if free else None
        if head is not None:
            self._serve(head, data)
            return
        if self.head_since is None and not self.served_elsewhere:
            self.head_since = self._loop.time()
        self._at_a_boundary = free and _is_one_whole_get(data)
        self._hand_over(data)

    def eof_received(self) -> bool | None:
        """See asyncio: the connection is closed."""
        return None

    def pause_writing(self) -> None:
        """See asyncio."""
        self.stuck_since = self._loop.time()
        if self._inner is not None:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        """See asyncio."""
        self.stuck_since = None
        self._release()
        if self._inner is not None:
            self._inner.resume_writing()
        if self._waits_for_room:
            self._waits_for_room = False
            self._next()

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio. A client that leaves takes its request with it."""
        self._host.lost(self)
        self._release()
        if self._lingering is not None:
            self._lingering.cancel()
        if self.task is not None:
            self.task.cancel()
        if self._inner is not None:
            self._inner.connection_lost(exc)

    # What is served here

    async def drained(self) -> None:
        """Wait until the client has read enough for more to be sent."""
        if self.stuck_since is not None:
            self._writable = self._loop.create_future()
            await self._writable

    def end(self) -> None:
        """Close it where nothing is under way here; what is, gets to its end."""
        if self.task is None and self._inner is None:
            self.transport.close()

    def _serve(self, head: UsualHead, data: bytes) -> None:
        self._leave_inner()
        self.head_since = self.idle_since = None
        client = self._client = UsualClient(self, head, self._host.bodies)
        self._goes_on(client, data[head.size :])
        self.task = self._loop.create_task(self._answer(client, head.route))
        self.task.add_done_callback(self._answered)

    async def _answer(self, client: UsualClient, route: Route) -> None:
        try:
            await self._host.serve(client, route)
        except ConnectionError:
            self.transport.abort()

    def _answered(self, task: asyncio.Task[None]) -> None:
        self.task, client = None, self._client
        assert client is not None, "it was there when the task began"
        if task.cancelled() or task.exception() is not None or not client.ended:
            self.transport.abort()
        elif client.missing:
            self._lingering = self._loop.call_later(LINGER_SECONDS, self.transport.close)
        else:
            self._next()

    def _goes_on(self, client: UsualClient, data: bytes) -> None:
        """More of the body, and perhaps the beginning of the next request."""
        beyond = client.feed(data)
        if self._lingering is not None and not client.missing:
            self._lingering.cancel()
            self._lingering = None
            self._ahead = beyond
            self._next()
        elif beyond:
            self._ahead += beyond
            if len(self._ahead) > MAX_AHEAD_BYTES:
                self.transport.pause_reading()

    def _next(self) -> None:
        """The answer is written: be there for the next request, which may have come already.

        Who does not read answers gets no more of them: they would lie here.
        """
        if self._host.draining:
            self.transport.close()
            return
        if self.stuck_since is not None:
            self._waits_for_room = True
            return
        self._client, self.idle_since = None, self._loop.time()
        ahead, self._ahead = self._ahead, b""
        if len(ahead) > MAX_AHEAD_BYTES:
            self.transport.resume_reading()
        if ahead:
            self.data_received(ahead)

    def _release(self) -> None:
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)

    # What aiohttp serves

    def _hand_over(self, data: bytes) -> None:
        if self._inner is None:
            self._inner = self._host.make()
            self._inner.connection_made(self.transport)
            if self.stuck_since is not None:
                self._inner.pause_writing()
            self.idle_since = None
        self._inner.data_received(data)

    def _is_free(self, inner: web.RequestHandler) -> bool:
        """Whether aiohttp has no part of a request and waits for one: the next byte is a head's first for certain."""
        waiter = getattr(inner, "_waiter", None)
        return self._at_a_boundary and self.head_since is None and waiter is not None and not waiter.done()

    def _leave_inner(self) -> None:
        if self._inner is not None:
            self._inner.transport = None  # which it would close
            self._inner.connection_lost(None)
            self._inner = None


def _is_one_whole_get(data: bytes) -> bool:
    return data.startswith(b"GET ") and data.find(b"\r\n\r\n") == len(data) - 4
