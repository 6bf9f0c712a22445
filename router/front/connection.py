"""Client connections that are watched: who begins a request and does not end its head, or asks and does not read.

aiohttp bounds how long a connection may idle, with or without half a head in it, and that has to be long. This bounds
the head alone: from a connection's first moment, or from the first byte after an answer, until a handler runs. And it
bounds how long an answer may wait for its reader: an engine computes it meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

from aiohttp import web
from aiohttp.typedefs import Handler

__all__ = ["ConnectionWatch"]

SWEEPS_PER_TIMEOUT = 4


class _Watched(asyncio.Protocol):
    """Stands between a transport and aiohttp's protocol.

    ``head_since`` is when the head that is being waited for began, ``stuck_since`` when its client stopped reading.
    """

    def __init__(self, inner: asyncio.Protocol, watch: ConnectionWatch) -> None:
        self.transport: asyncio.Transport | None = None
        self.head_since: float | None = None
        self.stuck_since: float | None = None
        self.serving = False
        self._inner = inner
        self._watch = watch
        self._now = asyncio.get_running_loop().time

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is one by what it does, not by its type
        self.head_since = self._now()
        self._watch.connections[transport] = self
        self._inner.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if self.head_since is None and not self.serving:
            self.head_since = self._now()
        self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        return self._inner.eof_received()

    def pause_writing(self) -> None:
        self.stuck_since = self._now()
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self.stuck_since = None
        self._inner.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        self._watch.connections.pop(self.transport, None)
        self._inner.connection_lost(error)


class ConnectionWatch:
    """Makes watched protocols, and closes those that are late, telling ``closed`` why. Timeouts in seconds."""

    def __init__(self, *, head_timeout: float, write_timeout: float, closed: Callable[[str], None]) -> None:
        self.connections: dict[Any, _Watched] = {}
        self._head_timeout = head_timeout
        self._write_timeout = write_timeout
        self._closed = closed

    def factory(self, make: Callable[[], asyncio.Protocol]) -> Callable[[], asyncio.Protocol]:
        """The factory to listen with, around aiohttp's own."""
        return lambda: _Watched(make(), self)

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """The head is there once a handler runs; what comes until it ends is body."""
        connection = self.connections.get(request.transport)
        if connection is None:  # it was lost in this moment
            return await handler(request)
        connection.head_since, connection.serving = None, True
        try:
            return await handler(request)
        finally:
            connection.serving = False

    async def run(self) -> None:
        """Close late connections until cancelled; each is found within a quarter of the shorter timeout."""
        now = asyncio.get_running_loop().time
        while True:
            await asyncio.sleep(min(self._head_timeout, self._write_timeout) / SWEEPS_PER_TIMEOUT)
            self._sweep(now())

    def _sweep(self, now: float) -> None:
        for connection in list(self.connections.values()):
            assert connection.transport is not None, "it is known from when it has one"
            if connection.head_since is not None and now - connection.head_since > self._head_timeout:
                connection.transport.close()
                self._forget(connection, "late head")
            elif connection.stuck_since is not None and now - connection.stuck_since > self._write_timeout:
                connection.transport.abort()  # what nobody reads cannot be sent to its end
                self._forget(connection, "unread answer")

    def _forget(self, connection: _Watched, why: str) -> None:
        connection.head_since = connection.stuck_since = None
        self._closed(why)
