"""A client whose request came by way of aiohttp's server, and whose answer goes back that way."""

from __future__ import annotations

from collections.abc import Mapping

from aiohttp import web

from router.front.body import BodyReader
from router.front.headers import Headers

__all__ = ["WebClient"]


class WebClient:
    """``response`` is what the handler returns to aiohttp in the end."""

    def __init__(self, http: web.Request, bodies: BodyReader) -> None:
        self.headers: Mapping[str, str] = http.headers
        self.path = http.rel_url.raw_path_qs
        self.response: web.StreamResponse = web.Response()
        self._http = http
        self._bodies = bodies

    async def body(self) -> bytes:
        """See `Client`."""
        return await self._bodies.read(self._http)

    async def answer(self, status: int, headers: Headers, body: bytes | bytearray) -> None:
        """See `Client`. It leaves when the handler has returned."""
        self.response = web.Response(status=status, headers=headers, body=body)

    async def begin(self, status: int, headers: Headers) -> None:
        """See `Client`."""
        self.response = web.StreamResponse(status=status, headers=headers)
        await self.response.prepare(self._http)

    async def write(self, chunk: bytes | bytearray) -> None:
        """See `Client`."""
        try:
            await self.response.write(chunk)
        except ConnectionError as error:
            raise ConnectionAbortedError("the client is gone") from error

    async def end(self, chunk: bytes) -> None:
        """See `Client`."""
        try:
            await self.response.write_eof(chunk)
        except ConnectionError as error:
            raise ConnectionAbortedError("the client is gone") from error

    def cut_off(self) -> None:
        """See `Client`."""
        if self._http.transport is not None:
            self._http.transport.abort()
