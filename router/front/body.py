"""Reads request bodies: within a limit, and within a time, however slowly a client sends.

A client that waits to be asked for its body (RFC 9110, section 10.1.1) is asked when somebody is about to read it:
after keys, limits and lengths were looked at.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from http import HTTPStatus
from typing import TypeVar

from aiohttp import HttpVersion11, web
from aiohttp.typedefs import Handler

from router.front.errors import ApiError

__all__ = ["BodyReader"]

_T = TypeVar("_T")


class BodyReader:
    """``timeout`` in seconds, for the whole body."""

    def __init__(self, *, max_bytes: int, timeout: float) -> None:
        self.max_bytes = max_bytes
        self._timeout = timeout

    def post(self, path: str, handler: Handler) -> web.RouteDef:
        """A POST route whose handler reads bodies here."""
        return web.post(path, handler, expect_handler=_say_nothing_yet)

    async def read(self, http: web.Request) -> bytes:
        """The whole request body.

        Raises:
            ApiError: 413 where it is larger than allowed, 408 where it does not come in time.
        """
        self.check_length(http.content_length or 0)
        if "Expect" in http.headers:
            await _invite(http)
        try:
            return self._at_once(http) if http.content.is_eof() else await self.in_time(http.read())
        except web.HTTPRequestEntityTooLarge:
            raise self._too_large() from None
        except web.RequestPayloadError as error:
            raise ApiError(  # nobody knows where on the connection the next request would begin
                f"the body cannot be read: {error}",
                status=HTTPStatus.BAD_REQUEST,
                code="invalid_body",
                headers={"Connection": "close"},
            ) from None

    async def in_time(self, body: Awaitable[_T]) -> _T:
        """A body that is still coming.

        Raises:
            ApiError: 408, it does not come in time.
        """
        try:
            async with asyncio.timeout(self._timeout):
                return await body
        except TimeoutError:
            message = f"the body did not arrive within {self._timeout:g} s"
            raise ApiError(message, status=HTTPStatus.REQUEST_TIMEOUT, code="body_timeout") from None

    def check_length(self, length: int) -> None:
        """Look at the length that a head announces.

        Raises:
            ApiError: 413, it is larger than allowed.
        """
        if length > self.max_bytes:
            raise self._too_large()

    def _at_once(self, http: web.Request) -> bytes:
        """A body that came with its head, as most do."""
        body = http.content.read_nowait()
        if len(body) > self.max_bytes:  # it was packed
            raise self._too_large()
        return body

    def _too_large(self) -> ApiError:
        message = f"the body is larger than {self.max_bytes} bytes"
        return ApiError(message, status=HTTPStatus.REQUEST_ENTITY_TOO_LARGE, code="request_too_large")


async def _say_nothing_yet(http: web.Request) -> None:
    """In place of aiohttp's own answer to Expect, which comes before anybody has looked at the request."""


async def _invite(http: web.Request) -> None:
    expected = http.headers["Expect"]
    if expected.lower() != "100-continue":
        message = f"expectation {expected!r:.80} cannot be met"
        raise ApiError(message, status=HTTPStatus.EXPECTATION_FAILED, code="unknown_expectation")
    if http.version >= HttpVersion11:
        transport = http.transport
        if transport is not None:
            transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
