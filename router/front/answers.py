"""Gives an engine's answer to the client as it comes, and reads the engine's report on the way.

An answer that comes at once is read to its end before the client gets any of it, so that a broken one can still be
replaced. A stream begins when the engine's first bytes are there; one that breaks off ends with an error event, and
anything else that does is cut off visibly.
"""

from __future__ import annotations

import logging
import time
from http import HTTPStatus

import aiohttp
from aiohttp import web

from router.fleet.fleet import Fleet
from router.fleet.prober import tell_failure
from router.front.engine_client import EngineAnswer
from router.front.errors import ApiError, error_event
from router.front.exchange import Exchange
from router.front.headers import REPLICA_HEADER, Headers, for_client
from router.front.metrics import RequestMetrics
from router.proof.report import read_report
from router.proof.sse import EventTap

__all__ = ["Answers"]

_LOG = logging.getLogger(__name__)
WHOLE_BYTES = 8 * 1024 * 1024
_EVENT_STREAM = "text/event-stream"
_OK = HTTPStatus.OK.value


class Answers:
    """``idle_timeout``: seconds for which an engine that has begun to answer may be silent. ``expose_replica`` names it
    in the answer's headers."""

    def __init__(self, *, fleet: Fleet, metrics: RequestMetrics, idle_timeout: float, expose_replica: bool) -> None:
        self._fleet = fleet
        self._metrics = metrics
        self._idle_timeout = idle_timeout
        self._expose_replica = expose_replica

    async def give(self, http: web.Request, upstream: EngineAnswer, exchange: Exchange) -> web.StreamResponse:
        """Pass an answer on.

        Raises:
            aiohttp.ClientError: the engine was lost before the client was given a byte.
            ConnectionAbortedError: the client is gone; not one of aiohttp's, which speak of engines here.
        """
        if upstream.status == _OK and upstream.content_type == _EVENT_STREAM:
            return await self._stream(http, upstream, exchange)
        return await self._whole(http, upstream, exchange)

    # An answer that comes at once

    async def _whole(self, http: web.Request, upstream: EngineAnswer, exchange: Exchange) -> web.StreamResponse:
        upstream.expect_within(self._idle_timeout)
        content = upstream.content
        body: bytes | bytearray = await content.readany()
        while not content.at_eof():
            if len(body) > WHOLE_BYTES:
                return await self._pass_on(http, upstream, exchange, body)
            body = body if isinstance(body, bytearray) else bytearray(body)
            body += await content.readany()
        if upstream.status == _OK:
            now = time.monotonic()
            exchange.first_token(now=now)
            exchange.finished(read_report(body), now=now)
        return web.Response(body=body, status=upstream.status, headers=self._headers(upstream, exchange))

    async def _pass_on(
        self, http: web.Request, upstream: EngineAnswer, exchange: Exchange, begun: bytes | bytearray
    ) -> web.StreamResponse:
        """An answer too large to hold: what was read, then the rest as it comes. Its report is not looked for."""
        exchange.first_token(now=time.monotonic())
        response = web.StreamResponse(status=upstream.status, headers=self._headers(upstream, exchange))
        await response.prepare(http)
        await _write(response, begun)
        content = upstream.content
        try:
            while not content.at_eof():
                await _write(response, await content.readany())
        except aiohttp.ClientError as error:
            self._broke_off(exchange, error)
            if http.transport is not None:
                http.transport.abort()  # the one way to tell the client that this is not the end
            return response
        await _write_last(response, b"")
        return response

    # An answer that streams

    async def _stream(self, http: web.Request, upstream: EngineAnswer, exchange: Exchange) -> web.StreamResponse:
        first = await upstream.content.readany()  # until the client's answer begins another engine can take over
        exchange.first_token(now=time.monotonic())
        upstream.expect_within(self._idle_timeout)
        tap = EventTap(strip_usage=exchange.counts_were_added)
        response = web.StreamResponse(status=upstream.status, headers=self._headers(upstream, exchange))
        await response.prepare(http)
        last = await self._all_but_last(first, upstream.content, response, tap, exchange)
        await _write_last(response, last)
        exchange.finished(tap.report, now=time.monotonic())
        return response

    async def _all_but_last(
        self,
        chunk: bytes,
        content: aiohttp.StreamReader,
        response: web.StreamResponse,
        tap: EventTap,
        exchange: Exchange,
    ) -> bytes:
        """Send a chunk and those that follow; what is left to be sent together with the stream's end."""
        while not content.at_eof():
            await _write(response, tap.feed(chunk))
            try:
                chunk = await content.readany()
            except aiohttp.ClientError as error:
                self._broke_off(exchange, error)
                return _last_words(tap, exchange.lane.url)
        return tap.feed(chunk) + tap.finish()

    def _broke_off(self, exchange: Exchange, error: aiohttp.ClientError) -> None:
        url = exchange.lane.url
        _LOG.warning("%s broke off an answer: %s", url, error or type(error).__name__)
        self._metrics.broke_off(url)
        self._fleet.report(url, tell_failure(error))

    def _headers(self, upstream: EngineAnswer, exchange: Exchange) -> Headers:
        headers = for_client(upstream.headers)
        if self._expose_replica:
            headers.append((REPLICA_HEADER, exchange.lane.url))
        return headers


async def _write(response: web.StreamResponse, chunk: bytes | bytearray) -> None:
    """Send to the client, as fast as it reads."""
    if not chunk:
        return
    try:
        await response.write(chunk)
    except ConnectionError as error:
        raise ConnectionAbortedError("the client is gone") from error


async def _write_last(response: web.StreamResponse, chunk: bytes) -> None:
    """As ``_write``, and end the answer."""
    try:
        await response.write_eof(chunk)
    except ConnectionError as error:
        raise ConnectionAbortedError("the client is gone") from error


def _last_words(tap: EventTap, url: str) -> bytes:
    """An error event; where the client was left inside another event, that one is ended first."""
    message = f"{url} broke off the answer"
    event = error_event(ApiError(message, status=HTTPStatus.BAD_GATEWAY, code="engine_lost"))
    return b"\n\n" + event if tap.broken_off else event
