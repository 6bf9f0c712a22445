"""Hands requests to engines over connections that are kept, without the rest of what a client session does.

Redirects, cookies, proxies, tracing, payload types and a task that writes the body cost as much again as sending and
reading do, and a routed request has none of them. Connections are made by a session's connector, with its timeouts and
errors; what is said on them is our own affair.
"""

from __future__ import annotations

import asyncio
from collections import deque
from math import inf
from types import TracebackType

import aiohttp
from yarl import URL

from router.front.engine_connection import EngineConnection
from router.front.headers import Headers

__all__ = ["ENGINE_KEEPALIVE_SECONDS", "EngineClient"]

ENGINE_KEEPALIVE_SECONDS = 4.0
"""Below the 5 s after which uvicorn, which serves SGLang and vLLM, closes an idle connection."""

PART_BYTES = 1024 * 1024
"""Larger bodies are written in parts of this size, so that nobody waits for one of them."""

TOGETHER_BYTES = 64 * 1024
"""A body up to this size leaves in one piece with its head."""

LOOKS_PER_TIMEOUT = 8
MAX_ENGINES = 4096


class _Engine:
    """What is known of one base URL: its ``Host`` field, what the connector is to be told, idle connections."""

    def __init__(self, url: str) -> None:
        self.target = aiohttp.ClientRequest("POST", URL(url), loop=asyncio.get_running_loop())
        self.host = self.target.headers["Host"]
        self.idle: deque[EngineConnection] = deque()


class EngineClient:
    """Speaks to engines as ``session`` does: within its timeouts, with its headers, keeping connections if it does.

    ``shortest_silence``, in seconds: the least that an engine is ever allowed by ``EngineConnection.expect_within``.
    """

    def __init__(self, session: aiohttp.ClientSession, *, shortest_silence: float) -> None:
        assert session.connector is not None, "a session that is open has a connector"
        self._connector = session.connector
        self._keeps = not session.connector.force_close
        self._timeout = session.timeout
        self._silence = session.timeout.sock_read or inf
        self._own = session.headers.copy()
        self._own_fields = "".join(f"{name}: {value}\r\n" for name, value in self._own.items())
        if not self._keeps:
            self._own_fields += "Connection: close\r\n"
        self._engines: dict[str, _Engine] = {}
        self._busy: set[EngineConnection] = set()
        self._now = asyncio.get_running_loop().time
        self._next_look: asyncio.TimerHandle | None = None
        self._look_every = min(self._silence, shortest_silence, ENGINE_KEEPALIVE_SECONDS) / LOOKS_PER_TIMEOUT

    def post(self, url: str, path: str, *, body: bytes, headers: Headers) -> _Call:
        """A context that sends the request on entry, and gives the connection once its answer has begun.

        ``url`` is an engine's base URL, ``path`` what follows. On the way out the connection is kept for the next
        request if the answer was read to its end, and closed otherwise.

        Raises:
            aiohttp.ClientError: on entry, and while the answer is read: as for a session's requests.
        """
        engine = self._engines.get(url) or self._know(url)
        return _Call(self, engine, self._head(engine, path, len(body), headers), body)

    def _know(self, url: str) -> _Engine:
        if len(self._engines) >= MAX_ENGINES:
            self._engines.pop(next(iter(self._engines)))
        engine = self._engines[url] = _Engine(url)
        return engine

    def _head(self, engine: _Engine, path: str, length: int, headers: Headers) -> bytes:
        if self._own:
            headers = [field for field in headers if field[0] not in self._own]
        fields = "".join([f"{name}: {value}\r\n" for name, value in headers])
        head = (
            f"POST {path} HTTP/1.1\r\nHost: {engine.host}\r\n{fields}{self._own_fields}Content-Length: {length}\r\n\r\n"
        )
        return head.encode(errors="surrogateescape")

    async def _take(self, engine: _Engine) -> EngineConnection:
        """A connection that nobody uses: the one used last, or a new one."""
        connection = self._kept(engine) or await self._connect(engine)
        self._busy.add(connection)
        if self._next_look is None:
            self._look_later()
        return connection

    def _kept(self, engine: _Engine) -> EngineConnection | None:
        since = self._now() - ENGINE_KEEPALIVE_SECONDS
        while engine.idle:
            kept = engine.idle.pop()
            if kept.reusable and kept.idle_since > since:
                return kept
            kept.close()
        return None

    async def _connect(self, engine: _Engine) -> EngineConnection:
        try:
            return EngineConnection(await self._connector.connect(engine.target, [], self._timeout))
        except TimeoutError as error:
            raise aiohttp.ConnectionTimeoutError(f"Connection timeout to host {engine.target.url}") from error

    def _leave(self, engine: _Engine, connection: EngineConnection) -> None:
        self._busy.discard(connection)
        if self._keeps and connection.reusable:
            connection.idle_since = self._now()
            engine.idle.append(connection)
        else:
            connection.close()

    # Time: one look at all connections now and then costs less than a timer for each request

    def _look_later(self) -> None:
        self._next_look = asyncio.get_running_loop().call_later(self._look_every, self._look)

    def _look(self) -> None:
        now, self._next_look = self._now(), None
        for connection in [connection for connection in self._busy if connection.deadline < now]:
            connection.give_up()
        for engine in self._engines.values():
            while engine.idle and now - engine.idle[0].idle_since > ENGINE_KEEPALIVE_SECONDS:
                engine.idle.popleft().close()
        if self._busy or any(engine.idle for engine in self._engines.values()):
            self._look_later()


class _Call:
    """One request on its way."""

    def __init__(self, client: EngineClient, engine: _Engine, head: bytes, body: bytes) -> None:
        self._client = client
        self._engine = engine
        self._head = head
        self._body = body
        self._connection: EngineConnection | None = None

    async def __aenter__(self) -> EngineConnection:
        self._connection = connection = await self._client._take(self._engine)
        try:
            await self._send(connection)
            await connection.head()
        except BaseException:
            self._client._leave(self._engine, connection)
            raise
        return connection

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._connection is not None, "left only after it was entered"
        self._client._leave(self._engine, self._connection)

    async def _send(self, connection: EngineConnection) -> None:
        body, silence = self._body, self._client._silence
        if len(body) <= TOGETHER_BYTES:
            connection.ask(self._head + body, silence=silence)
            return
        connection.ask(self._head, silence=silence)
        if len(body) <= PART_BYTES:
            connection.go_on(body)
            return
        whole = memoryview(body)
        for start in range(0, len(body), PART_BYTES):
            connection.go_on(whole[start : start + PART_BYTES])
            await asyncio.sleep(0)
