"""One replica's HTTP server: listening, draining, closing."""

from __future__ import annotations

import asyncio
import contextlib
import os

from aiohttp import web

from contract.endpoint import bracket
from engine.server.app import build_app
from engine.server.replica import Replica

__all__ = ["HttpServer"]

_CLOSE_SECONDS = 1.0


class HttpServer:
    """Serves one replica. A handler whose client leaves is cancelled at once, which frees the client's requests."""

    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        self.url = ""
        self._runner = web.AppRunner(
            build_app(replica), access_log=None, handler_cancellation=True, shutdown_timeout=_CLOSE_SECONDS
        )
        self._site: web.TCPSite | None = None

    async def listen(self, *, host: str, port: int) -> str:
        """Accept connections; the base URL, with the port that the system chose where ``port`` is 0.

        Raises:
            OSError: the port is taken, or the address is not this machine's.
        """
        await self._runner.setup()
        self._site = web.TCPSite(self._runner, host, port)
        try:
            await self._site.start()
        except OSError as error:
            cause = os.strerror(error.errno) if error.errno else str(error)
            raise OSError(f"cannot listen on {bracket(host)}:{port}: {cause}") from None
        self.url = f"http://{bracket(host)}:{self._runner.addresses[0][1]}"
        return self.url

    async def drain(self, seconds: float) -> None:
        """Accept nothing more, and let the requests in flight end for so long."""
        self.replica.draining = True
        if self._site is not None:
            await self._site.stop()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.replica.lanes.wait_idle()

    async def close(self) -> None:
        """End all connections; answers that are ready to be written get a moment."""
        await self._runner.cleanup()
