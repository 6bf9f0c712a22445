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

from router.fleet.fleet import Fleet
from router.fleet.prober import tell_failure
from router.front.client import Client
from router.front.engine_connection import EngineConnection
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

    async def give(self, client: Client, upstream: EngineConnection, exchange: Exchange) -> int:
        """Pass an answer on; its status.

        Raises:
            aiohttp.ClientError: the engine was lost before the client was given a byte.
            ConnectionAbortedError: the client is gone; not one of aiohttp's, which speak of engines here.
        """
        if upstream.status == _OK and upstream.content_type == _EVENT_STREAM:
            await self._stream(client, upstream, exchange)
        else:
            await self._whole(client, upstream, exchange)
        return upstream.status

    # An answer that comes at once

    async def _whole(self, client: Client, upstream: EngineConnection, exchange: Exchange) -> None:
        upstream.expect_within(self._idle_timeout)
        body: bytes | bytearray = await upstream.part()
        while not upstream.ended:
            if len(body) > WHOLE_BYTES:
                await self._pass_on(client, upstream, exchange, body)
                return
            body = body if isinstance(body, bytearray) else bytearray(body)
            body += await upstream.part()
        if upstream.status == _OK:
            now = time.monotonic()
            exchange.first_token(now=now)
            exchange.finished(read_report(body), now=now)
        await client.answer(upstream.status, self._headers(upstream, exchange), body)

    async def _pass_on(
        self, client: Client, upstream: EngineConnection, exchange: Exchange, begun: bytes | bytearray
    ) -> None:
        """An answer too large to hold: what was read, then the rest as it comes. Its report is not looked for."""
        exchange.first_token(now=time.monotonic())
        await client.begin(upstream.status, self._headers(upstream, exchange))
        await client.write(begun)
        try:
            while part := await upstream.part():
                await client.write(part)
        except aiohttp.ClientError as error:
            self._broke_off(exchange, error)
            client.cut_off()
        else:
            await client.end(b"")

    # An answer that streams

    async def _stream(self, client: Client, upstream: EngineConnection, exchange: Exchange) -> None:
        first = await upstream.part()  # until the client's answer begins another engine can take over
        exchange.first_token(now=time.monotonic())
        upstream.expect_within(self._idle_timeout)
        tap = EventTap(strip_usage=exchange.counts_were_added)
        await client.begin(upstream.status, self._headers(upstream, exchange))
        last = await self._all_but_last(first, upstream, client, tap, exchange)
        await client.end(last)
        exchange.finished(tap.report, now=time.monotonic())

    async def _all_but_last(
        self, chunk: bytes, upstream: EngineConnection, client: Client, tap: EventTap, exchange: Exchange
    ) -> bytes:
        """Send a chunk and those that follow; what is left to be sent together with the stream's end."""
        while not upstream.ended:
            if kept := tap.feed(chunk):
                await client.write(kept)
            try:
                chunk = await upstream.part()
            except aiohttp.ClientError as error:
                self._broke_off(exchange, error)
                return _last_words(tap, exchange.lane.url)
        return tap.feed(chunk) + tap.finish()

    def _broke_off(self, exchange: Exchange, error: aiohttp.ClientError) -> None:
        url = exchange.lane.url
        _LOG.warning("%s broke off an answer: %s", url, error or type(error).__name__)
        self._metrics.broke_off(url)
        self._fleet.report(url, tell_failure(error))

    def _headers(self, upstream: EngineConnection, exchange: Exchange) -> Headers:
        headers = for_client(upstream.headers)
        if self._expose_replica:
            headers.append((REPLICA_HEADER, exchange.lane.url))
        return exchange.answered(headers)


def _last_words(tap: EventTap, url: str) -> bytes:
    """An error event; where the client was left inside another event, that one is ended first."""
    message = f"{url} broke off the answer"
    event = error_event(ApiError(message, status=HTTPStatus.BAD_GATEWAY, code="engine_lost"))
    return b"\n\n" + event if tap.broken_off else event
