"""A client that costs little beside the router it measures: prepared requests over bare connections, one at a time on
each. What came back is kept as it came and read after the clock has stopped.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple, cast
from urllib.parse import urlsplit

from bench.client import RequestError
from bench.router.messages import Message, MessageError, MessageReader

__all__ = ["Answered", "Connection", "connections"]

_GREETING = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
_OK = b"HTTP/1.1 200 "
_MAX_ERROR_BYTES = 300


class Answered(NamedTuple):
    """One answer, and the seconds from sending to its last byte."""

    message: Message
    seconds: float


class Connection(asyncio.Protocol):
    """One connection, kept open."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._reader = MessageReader()
        self._waiting: asyncio.Future[tuple[Message, float]] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the loop."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by its bases

    def data_received(self, data: bytes) -> None:
        """Called by the loop."""
        ended_at = time.perf_counter()
        try:
            messages = self._reader.feed(data)
        except MessageError as error:
            self._fail(str(error))
            return
        if messages and self._waiting is not None and not self._waiting.done():
            self._waiting.set_result((messages[0], ended_at))

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the loop."""
        self._fail(f"connection lost: {exc or 'closed'}")

    def _fail(self, why: str) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(RequestError(f"{self._url}: {why}"))

    async def ask(self, request: bytes) -> Answered:
        """Send a request and wait for the whole answer, for as long as it takes.

        Raises:
            RequestError: no answer came, or none of status 200; it names the URL.
        """
        if self._transport.is_closing():
            raise RequestError(f"{self._url}: connection lost before the request")
        self._waiting = asyncio.get_running_loop().create_future()
        sent_at = time.perf_counter()
        self._transport.write(request)
        message, ended_at = await self._waiting
        if not message.head.startswith(_OK):
            said = b" ".join([*message.head.split(b"\r\n", 1)[:1], message.body[:_MAX_ERROR_BYTES]])
            raise RequestError(f"{self._url}: {said.decode(errors='replace')}")
        return Answered(message, ended_at - sent_at)

    def close(self) -> None:
        """End the connection."""
        self._transport.close()


@asynccontextmanager
async def connections(urls: Sequence[str], count: int) -> AsyncIterator[Sequence[Connection]]:
    """``count`` connections, dealt out to ``urls``; each has carried a request already, which is no measurement.

    Raises:
        RequestError: nobody listens there, or does not say that it is well.
    """
    opened = await asyncio.gather(*(_connect(urls[index % len(urls)]) for index in range(count)))
    try:
        await asyncio.gather(*(connection.ask(_GREETING) for connection in opened))
        yield opened
    finally:
        for connection in opened:
            connection.close()


async def _connect(url: str) -> Connection:
    parts = urlsplit(url)
    assert parts.hostname, f"{url} has no host"
    assert parts.port, f"{url} has no port"
    loop = asyncio.get_running_loop()
    try:
        _, connection = await loop.create_connection(lambda: Connection(url), parts.hostname, parts.port)
    except OSError as error:
        raise RequestError(f"{url}: {error}") from None
    return connection
