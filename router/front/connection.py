"""Client connections that are watched: whoever begins a request and does not get to the end of its head is closed.

aiohttp bounds how long a connection may idle, with or without half a head in it, and that has to be long. This bounds
the head alone: from a connection's first moment, or from the first byte after an answer, until a handler runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler

__all__ = ["HeadWatch"]

SWEEPS_PER_TIMEOUT = 4


class _Watched(asyncio.Protocol):
    """Stands between a transport and aiohttp's protocol; ``since`` is when the head that is being waited for began."""

    def __init__(self, inner: asyncio.Protocol, watch: HeadWatch) -> None:
        self.transport: asyncio.BaseTransport | None = None
        self.since: float | None = None
        self.serving = False
        self._inner = inner
        self._watch = watch
        self._now = asyncio.get_running_loop().time

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.since = self._now()
        self._watch.connections[transport] = self
        self._inner.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if self.since is None and not self.serving:
            self.since = self._now()
        self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        return self._inner.eof_received()

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        self._watch.connections.pop(self.transport, None)
        self._inner.connection_lost(error)


class HeadWatch:
    """Makes watched protocols, and closes those that are late, telling ``closed``. ``timeout`` in seconds."""

    def __init__(self, *, timeout: float, closed: Callable[[], None]) -> None:
        self.connections: dict[Any, _Watched] = {}
        self._timeout = timeout
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
        connection.since, connection.serving = None, True
        try:
            return await handler(request)
        finally:
            connection.serving = False

    async def run(self) -> None:
        """Close late connections until cancelled; each is found within a quarter of the timeout."""
        now = asyncio.get_running_loop().time
        while True:
            await asyncio.sleep(self._timeout / SWEEPS_PER_TIMEOUT)
            limit = now() - self._timeout
            for connection in list(self.connections.values()):
                if connection.since is not None and connection.since < limit:
                    self._close(connection)

    def _close(self, connection: _Watched) -> None:
        self._closed()
        connection.since = None
        if connection.transport is not None:
            connection.transport.close()
