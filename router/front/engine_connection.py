"""One connection to an engine: requests go out as bytes, and of answers only what is needed is made into objects.

Made by aiohttp's connector, TLS and all; from then on `httptools` cuts what comes into heads and bodies. Knows nothing
of who asks, of pools or of second tries. Errors are those that an aiohttp session would raise.
"""

from __future__ import annotations

import asyncio
from collections import deque
from math import inf

import aiohttp
import httptools
from aiohttp.connector import Connection

from router.front.headers import Headers

__all__ = ["EngineConnection"]

MOST_UNREAD_BYTES = 256 * 1024
"""More of an answer is not read before somebody takes what there is."""

MOST_HEAD_BYTES = 64 * 1024
"""More without an answer's beginning is no answer."""

_SWITCHING = 101
_FRAMING = frozenset({"content-length", "transfer-encoding"})
_BODILESS = frozenset({_SWITCHING, 204, 304})


class EngineConnection(asyncio.Protocol):
    """Takes the place of ``made``'s protocol. ``status`` and ``headers`` are the answer's, once it has begun.

    ``deadline``: when, by the loop's clock, the engine has been silent for too long; infinite while nobody waits.
    ``idle_since`` is kept by whoever keeps the connection.
    """

    def __init__(self, made: Connection) -> None:
        transport, protocol = made.transport, made.protocol
        if transport is None or protocol is None or transport.is_closing():
            made.close()
            raise aiohttp.ServerDisconnectedError
        self.status = 0
        self.headers: Headers = []
        self.deadline = inf
        self.idle_since = 0.0
        self._transport = transport
        self._made = made
        self._replaced = protocol
        self._now = asyncio.get_running_loop().time
        self._parser = httptools.HttpResponseParser(self)
        self._silence = inf
        self._asked = self._begun = self._complete = False
        self._keeps = self._framed = False
        self._parts: deque[bytes] = deque()
        self._head_bytes = self._unread = 0
        self._error: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None
        transport.set_protocol(self)

    # For whoever asks

    @property
    def content_type(self) -> str:
        """The type of the body, without parameters."""
        for name, value in self.headers:
            if name.lower() == "content-type":
                return value.partition(";")[0].strip().lower()
        return ""

    @property
    def reusable(self) -> bool:
        """Whether another request may follow: the answer was read to its end, and the engine stays."""
        return self.ended and self._keeps and self._error is None and not self._transport.is_closing()

    @property
    def ended(self) -> bool:
        """Whether all of the answer was taken."""
        return self._complete and not self._parts

    def ask(self, request: bytes, *, silence: float) -> None:
        """Send a request, whole or its beginning; the engine may be silent for that long from now on."""
        self.status, self.headers, self._head_bytes = 0, [], 0
        self._asked, self._begun, self._complete = True, False, False
        self._keeps = self._framed = False
        self._silence = silence
        self._transport.write(request)

    def go_on(self, part: bytes | memoryview) -> None:
        """Send more of the request."""
        self._transport.write(part)

    async def head(self) -> None:
        """Wait until the answer has begun.

        Raises:
            aiohttp.ClientError: it never does.
        """
        while not self._begun:
            await self._wait()

    async def part(self) -> bytes:
        """What has come of the answer's body since; empty at its end.

        Raises:
            aiohttp.ClientError: it breaks off.
        """
        while not self._parts:
            if self._complete:
                return b""
            await self._wait()
        parts = self._parts
        part = parts.popleft() if len(parts) == 1 else b"".join(parts)
        parts.clear()
        if self._unread > MOST_UNREAD_BYTES:
            self._transport.resume_reading()
        self._unread = 0
        return part

    def expect_within(self, seconds: float) -> None:
        """From now on the engine may be silent for that long."""
        self._silence = seconds

    def give_up(self) -> None:
        """It was silent for too long."""
        self._fail(aiohttp.SocketTimeoutError("Timeout on reading data from socket"))

    def close(self) -> None:
        """Close it, whatever is under way."""
        self._made.close()

    async def _wait(self) -> None:
        if self._error is not None:
            raise self._error
        self._waiter = asyncio.get_running_loop().create_future()
        self.deadline = self._now() + self._silence
        try:
            await self._waiter
        finally:
            self._waiter, self.deadline = None, inf

    # For the loop

    def data_received(self, data: bytes) -> None:
        """See asyncio."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._keeps = False
        except httptools.HttpParserError as error:
            self._fail(aiohttp.ClientPayloadError(f"not HTTP: {error}"))
        if not self._begun:
            self._head_bytes += len(data)
            if self._head_bytes > MOST_HEAD_BYTES:
                self._fail(aiohttp.ClientPayloadError(f"an answer's head of more than {MOST_HEAD_BYTES} bytes"))
        if self.deadline < inf:
            self.deadline = self._now() + self._silence
        if self._unread > MOST_UNREAD_BYTES:
            self._transport.pause_reading()
        if self._begun or self._error is not None:
            self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio. A body without a length has its end here."""
        self._replaced.connection_lost(exc)  # aiohttp waits for that when it closes
        self._made.close()
        if self._begun and not self._framed and exc is None:
            self._complete = True
        elif not self._complete:
            lost = aiohttp.ClientPayloadError if self._begun else aiohttp.ServerDisconnectedError
            self._fail(aiohttp.ClientOSError(*exc.args) if isinstance(exc, OSError) else lost())
        self._wake()

    def _fail(self, error: aiohttp.ClientError) -> None:
        self._error = self._error or error
        self._transport.close()
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # For the parser

    def on_message_begin(self) -> None:
        """An answer; one that nobody has asked for makes the rest doubtful."""
        if not self._asked or self._complete:
            self._fail(aiohttp.ClientPayloadError("an answer that nobody asked for"))

    def on_header(self, name: bytes, value: bytes) -> None:
        """A field of a head, or of a trailer, which nobody is told of."""
        if not self._begun:
            self.headers.append((name.decode(errors="surrogateescape"), value.decode(errors="surrogateescape")))

    def on_headers_complete(self) -> None:
        """The head is there."""
        if self._complete:
            return
        status = self._parser.get_status_code()
        if status < 200 and status != _SWITCHING:  # more will come
            self.headers.clear()
            return
        self.status, self._begun = status, True
        self._framed = status in _BODILESS or any(name.lower() in _FRAMING for name, _ in self.headers)

    def on_body(self, part: bytes) -> None:
        """Some of the body."""
        if self._complete:
            return
        self._parts.append(part)
        self._unread += len(part)

    def on_message_complete(self) -> None:
        """The answer's end, where its head tells."""
        if self._begun:
            self._complete = self._framed = True
            self._keeps = self._parser.should_keep_alive()
