"""The listening socket: bound before anybody is told, closed only after running requests had their time."""

from __future__ import annotations

import asyncio
import logging

import aiohttp
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from router.front.api import Api
from router.front.connection import LINGER_SECONDS
from router.front.connections import CLIENT_KEEPALIVE_SECONDS, Connections
from router.front.engine_client import ENGINE_KEEPALIVE_SECONDS

__all__ = ["BindError", "HttpServer", "engine_session", "stop_listening"]

SHUTDOWN_PHASES = 2
"""aiohttp waits its timeout twice: for all requests, then for those whose bodies had come, before it ends them."""

ACCEPT_TURNS = 3
"""Turns of asyncio's loop from taking a connection to telling its protocol of it."""

BACKLOG = 1024


class BindError(OSError):
    """An address that cannot be listened on, in one line."""


class HttpServer:
    """Serves an api on one address. ``drain_timeout`` in seconds. ``shared``: other processes listen there too."""

    def __init__(
        self, api: Api, *, connections: Connections, host: str, port: int, shared: bool, drain_timeout: float
    ) -> None:
        self._api = api
        self._host = host
        self._port = port
        self._shared = shared
        self._connections = connections
        self._drain_timeout = drain_timeout
        self._watching: asyncio.Task[None] | None = None
        self._listener: asyncio.Server | None = None
        self._runner = web.AppRunner(
            api.application(connections.middleware),
            access_log=None,
            handler_cancellation=True,  # a client that leaves must cancel its handler: that is what frees the engine
            shutdown_timeout=drain_timeout / SHUTDOWN_PHASES,
            keepalive_timeout=CLIENT_KEEPALIVE_SECONDS,
            lingering_time=LINGER_SECONDS,
            logger=_connection_log(),
        )

    async def start(self) -> str:
        """Listen; the base URL, with the port that the system chose for port 0.

        Raises:
            BindError: the address is taken or is not ours.
        """
        await self._runner.setup()
        make = self._runner.server
        assert make is not None, "a runner has a server once it is set up"
        loop = asyncio.get_running_loop()
        try:
            self._listener = await loop.create_server(
                self._connections.factory(make),
                self._host,
                self._port,
                backlog=BACKLOG,
                reuse_port=self._shared or None,
            )
        except OSError as error:
            raise BindError(f"cannot listen on {self._host}:{self._port}: {error.strerror or error}") from None
        self._watching = asyncio.create_task(self._connections.run(), name="connection watch")
        host, port = self._listener.sockets[0].getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    async def close(self) -> None:
        """Take no more connections, let running requests end for a while, then end them."""
        self._api.draining = True
        if self._listener is not None:
            await stop_listening(self._listener)
        await asyncio.gather(self._runner.cleanup(), self._connections.drain(within=self._drain_timeout))
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)


async def stop_listening(listener: asyncio.Server) -> None:
    """Take no more connections, and close once those that were taken are known to their protocols.

    asyncio forgets a connection that it takes in the turn in which it is to close: nobody serves it, nobody closes it.
    """
    loop = asyncio.get_running_loop()
    for listening in listener.sockets:
        loop.remove_reader(listening.fileno())
    for _ in range(ACCEPT_TURNS):
        await asyncio.sleep(0)
    listener.close()


def _connection_log() -> logging.Logger:
    """Where aiohttp complains of connections, but not of what is no HTTP, nor of bodies that are not what their head
    says: anybody could fill the log with that."""
    log = logging.getLogger(f"{__name__}.connections")
    log.addFilter(_is_not_the_clients_fault)
    return log


def _is_not_the_clients_fault(record: logging.LogRecord) -> bool:
    return not (record.exc_info and isinstance(record.exc_info[1], (HttpProcessingError, web.RequestPayloadError)))


def engine_session(
    *, connect_timeout: float, first_byte_timeout: float, replica_key: str, keep_connections: bool
) -> aiohttp.ClientSession:
    """A session engines are spoken to over, with the key they want, where there is one. Bytes pass as they are; there
    is no limit on connections, since each belongs to a client's."""
    if keep_connections:
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=ENGINE_KEEPALIVE_SECONDS)
    else:
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
    return aiohttp.ClientSession(
        connector=connector,
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=connect_timeout, sock_read=first_byte_timeout),
        headers={"Authorization": f"Bearer {replica_key}"} if replica_key else None,
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
    )
