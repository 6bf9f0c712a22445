"""The listening socket: bound before anybody is told, closed only after running requests had their time."""

from __future__ import annotations

import aiohttp
from aiohttp import web

from router.front.api import Api

__all__ = ["BindError", "HttpServer", "engine_session"]

ENGINE_KEEPALIVE_SECONDS = 4.0
"""Below the 5 s after which uvicorn, which serves SGLang and vLLM, closes an idle connection."""


class BindError(OSError):
    """An address that cannot be listened on, in one line."""


class HttpServer:
    """Serves an api on one address. ``drain_timeout`` in seconds."""

    def __init__(self, api: Api, *, host: str, port: int, drain_timeout: float) -> None:
        self._api = api
        self._host = host
        self._port = port
        # A client that leaves must cancel its handler: that is what frees the engine.
        self._runner = web.AppRunner(
            api.application(), access_log=None, handler_cancellation=True, shutdown_timeout=drain_timeout
        )

    async def start(self) -> str:
        """Listen; the base URL, with the port that the system chose for port 0.

        Raises:
            BindError: the address is taken or is not ours.
        """
        await self._runner.setup()
        site = web.TCPSite(self._runner, self._host, self._port)
        try:
            await site.start()
        except OSError as error:
            raise BindError(f"cannot listen on {self._host}:{self._port}: {error.strerror or error}") from None
        host, port = self._runner.addresses[0][:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    async def close(self) -> None:
        """Take no more connections, let running requests end for a while, then end them."""
        self._api.draining = True
        await self._runner.cleanup()


def engine_session(*, connect_timeout: float, idle_timeout: float) -> aiohttp.ClientSession:
    """The session all engines are spoken to over. Bytes pass as they are; there is no limit on connections, since each
    belongs to a client's."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=ENGINE_KEEPALIVE_SECONDS),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=connect_timeout, sock_read=idle_timeout),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
    )
