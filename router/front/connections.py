"""All client connections: who sends half a head, who asks and does not read, who has nothing to say any more.

Each is bounded in time, and told to end when the router does. Those that aiohttp serves keep its own clock for idling;
a head's clock is one for both: from a connection's first moment, or from the first byte after an answer, until the
request is served.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler

from router.front.body import BodyReader
from router.front.connection import ClientConnection, Serve

__all__ = ["CLIENT_KEEPALIVE_SECONDS", "Connections"]

CLIENT_KEEPALIVE_SECONDS = 75.0
"""Above the 60 s for which common load balancers keep an idle connection: the side that sends must close first."""

SWEEPS_PER_TIMEOUT = 4


class Connections:
    """Makes them, and closes those that are late, telling ``closed`` why. Timeouts in seconds."""

    def __init__(
        self,
        *,
        serve: Serve,
        bodies: BodyReader,
        head_timeout: float,
        write_timeout: float,
        closed: Callable[[str], None],
    ) -> None:
        self.draining = False
        self.serve = serve
        self.bodies = bodies
        self.make: Callable[[], web.RequestHandler]
        self._by_transport: dict[Any, ClientConnection] = {}
        self._head_timeout = head_timeout
        self._write_timeout = write_timeout
        self._closed = closed

    def factory(self, make: Callable[[], web.RequestHandler]) -> Callable[[], ClientConnection]:
        """The factory to listen with; ``make`` is aiohttp's own."""
        self.make = make
        return lambda: ClientConnection(self)

    def opened(self, connection: ClientConnection) -> None:
        """See `Host`."""
        self._by_transport[connection.transport] = connection

    def lost(self, connection: ClientConnection) -> None:
        """See `Host`."""
        del self._by_transport[connection.transport]

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Of requests that aiohttp serves the head is there once a handler runs; what comes until it ends is body."""
        connection = self._by_transport.get(request.transport)
        if connection is None:  # it was lost in this moment
            return await handler(request)
        connection.head_since, connection.served_elsewhere = None, True
        try:
            return await handler(request)
        finally:
            connection.served_elsewhere = False

    async def run(self) -> None:
        """Close late connections until cancelled; each is found within a quarter of the shorter timeout."""
        now = asyncio.get_running_loop().time
        while True:
            await asyncio.sleep(min(self._head_timeout, self._write_timeout) / SWEEPS_PER_TIMEOUT)
            self._sweep(now())

    async def drain(self, *, within: float) -> None:
        """Close what is idle, give requests so many seconds, then end them too."""
        self.draining = True
        everyone = list(self._by_transport.values())
        for connection in everyone:
            connection.end()
        tasks = [connection.task for connection in everyone if connection.task is not None]
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=within)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    def _sweep(self, now: float) -> None:
        for connection in list(self._by_transport.values()):
            if connection.head_since is not None and now - connection.head_since > self._head_timeout:
                connection.transport.close()
                self._forget(connection, "late head")
            elif connection.stuck_since is not None and now - connection.stuck_since > self._write_timeout:
                connection.transport.abort()  # what nobody reads cannot be sent to its end
                self._forget(connection, "unread answer")
            elif connection.idle_since is not None and now - connection.idle_since > CLIENT_KEEPALIVE_SECONDS:
                connection.transport.close()

    def _forget(self, connection: ClientConnection, why: str) -> None:
        connection.head_since = connection.stuck_since = None
        self._closed(why)
