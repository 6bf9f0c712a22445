"""A client that sent a usual request, and the answer that it gets, as bytes on its connection."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from typing import Protocol

from router.front.body import BodyReader
from router.front.headers import Headers
from router.front.usual_head import UsualHead

__all__ = ["UsualClient"]

TOGETHER_BYTES = 64 * 1024
"""A whole answer up to this size leaves in one piece with its head."""

_WITHOUT_BODY = frozenset({HTTPStatus.NO_CONTENT.value, HTTPStatus.NOT_MODIFIED.value})
_LAST = b"0\r\n\r\n"


class _Connection(Protocol):
    transport: asyncio.Transport

    async def drained(self) -> None: ...


class UsualClient:
    """``missing``: bytes of the body that have not come; ``ended``: the whole answer is written."""

    def __init__(self, connection: _Connection, head: UsualHead, bodies: BodyReader) -> None:
        self.headers: Mapping[str, str] = head.headers
        self.path: str = head.route.value
        self.missing = self._length = head.length
        self.ended = False
        self._connection = connection
        self._bodies = bodies
        self._parts: list[bytes] = []
        self._refused = False
        self._complete: asyncio.Future[None] | None = None
        self._begun = b""

    def feed(self, data: bytes) -> bytes:
        """More of what the client sends; what of it is beyond the body. The body of what is answered is dropped."""
        own, beyond = data[: self.missing], data[self.missing :]
        self.missing -= len(own)
        if not self.ended and not self._refused:
            self._parts.append(own)
        if not self.missing and self._complete is not None and not self._complete.done():
            self._complete.set_result(None)
        return beyond

    async def body(self) -> bytes:
        """See `Client`."""
        try:
            self._bodies.check_length(self._length)
            if self.missing:
                self._complete = asyncio.get_running_loop().create_future()
                await self._bodies.in_time(self._complete)
        except BaseException:
            self._refused = True
            raise
        parts, self._parts = self._parts, []
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def answer(self, status: int, headers: Headers, body: bytes | bytearray) -> None:
        """See `Client`. It is in the system's or the transport's hands then, however slowly the client reads."""
        if status in _WITHOUT_BODY or status < HTTPStatus.OK:
            length, body = "", b""
        else:
            length = f"Content-Length: {len(body)}\r\n"
        head = _head(status, headers, length)
        if len(body) <= TOGETHER_BYTES:
            self._send(head + body)
        else:
            self._send(head)
            self._send(body)
        self.ended = True

    async def begin(self, status: int, headers: Headers) -> None:
        """See `Client`."""
        self._begun = _head(status, headers, "Transfer-Encoding: chunked\r\n")

    async def write(self, chunk: bytes | bytearray) -> None:
        """See `Client`."""
        self._send(self._framed(chunk))
        await self._connection.drained()

    async def end(self, chunk: bytes) -> None:
        """See `Client`."""
        self._send((self._framed(chunk) if chunk else self._begun) + _LAST)
        self.ended = True

    def cut_off(self) -> None:
        """See `Client`."""
        self._connection.transport.abort()

    def _framed(self, chunk: bytes | bytearray) -> bytes:
        begun, self._begun = self._begun, b""
        return b"".join((begun, b"%x\r\n" % len(chunk), chunk, b"\r\n"))

    def _send(self, data: bytes | bytearray) -> None:
        transport = self._connection.transport
        if transport.is_closing():
            raise ConnectionAbortedError("the client is gone")
        transport.write(data)


def _head(status: int, headers: Headers, framing: str) -> bytes:
    fields = "".join([f"{name}: {value}\r\n" for name, value in headers])
    return f"{_status_line(status)}{fields}{framing}Date: {_date(int(time.time()))}\r\n\r\n".encode(
        errors="surrogateescape"
    )


@lru_cache(maxsize=64)
def _status_line(status: int) -> str:
    phrase = HTTPStatus(status).phrase if status in HTTPStatus.__members__.values() else ""
    return f"HTTP/1.1 {status} {phrase}\r\n"


@lru_cache(maxsize=1)
def _date(second: int) -> str:
    return formatdate(second, usegmt=True)
