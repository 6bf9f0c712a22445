"""Hands requests to engines over a session's connections, without the rest of what a client session does.

Redirects, cookies, proxies, tracing, payload types and a task that writes the body cost as much again as sending and
reading do, and a routed request has none of them. So this goes to the parts beneath: aiohttp's own connector, header
writer and response parser. It is the one module that knows them. Errors are those that a session raises.
"""

from __future__ import annotations

import asyncio
from types import TracebackType

import aiohttp
from aiohttp.connector import Connection
from aiohttp.http import HttpProcessingError, StreamWriter
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from router.front.headers import Headers

__all__ = ["EngineAnswer", "EngineClient"]

PART_BYTES = 1024 * 1024
"""Larger bodies are written in parts of this size, so that nobody waits for one of them."""

MAX_TARGETS = 4096
_INTERIM = range(100, 200)


class EngineAnswer:
    """An answer whose head has come; ``content`` is its body, as it comes."""

    def __init__(
        self, connection: Connection, status: int, headers: CIMultiDictProxy[str], content: aiohttp.StreamReader
    ) -> None:
        self.status = status
        self.headers = headers
        self.content = content
        self._connection = connection

    @property
    def content_type(self) -> str:
        """The type of the body, without parameters."""
        return self.headers.get("Content-Type", "").partition(";")[0].strip().lower()

    def expect_within(self, seconds: float) -> None:
        """From now on the engine may be silent for that long before it counts as lost."""
        protocol = self._connection.protocol
        if protocol is not None:
            protocol.read_timeout = seconds


class EngineClient:
    """Speaks to engines as ``session`` does: over its connector, within its timeouts, with its headers."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        assert session.connector is not None, "a session that is open has a connector"
        self._connector = session.connector
        self._timeout = session.timeout
        self._own_headers = tuple(session.headers.items())
        self._targets: dict[str, aiohttp.ClientRequest] = {}

    def post(self, url: str, path: str, *, body: bytes, headers: Headers) -> _Call:
        """A context that sends the request on entry, and gives the answer once its head is there.

        ``url`` is an engine's base URL, ``path`` what follows. On the way out the connection is kept for the next
        request if the answer was read to its end, and closed otherwise.

        Raises:
            aiohttp.ClientError: on entry, and while the answer is read: as for a session's requests.
        """
        return _Call(self, self._target(url), path, body, headers)

    def _target(self, url: str) -> aiohttp.ClientRequest:
        """What the connector wants to know of an engine: a request that is never sent."""
        target = self._targets.get(url)
        if target is None:
            if len(self._targets) >= MAX_TARGETS:
                self._targets.clear()
            target = self._targets[url] = aiohttp.ClientRequest("POST", URL(url), loop=asyncio.get_running_loop())
        return target

    async def _connect(self, target: aiohttp.ClientRequest) -> Connection:
        try:
            return await self._connector.connect(target, [], self._timeout)
        except TimeoutError as error:
            raise aiohttp.ConnectionTimeoutError(f"Connection timeout to host {target.url}") from error

    def _head(self, target: aiohttp.ClientRequest, body: bytes, headers: Headers) -> CIMultiDict[str]:
        head = CIMultiDict(headers)
        head["Host"] = target.headers["Host"]
        head["Content-Length"] = str(len(body))
        head.update(self._own_headers)
        if self._connector.force_close:
            head["Connection"] = "close"
        return head


class _Call:
    """One request on its way."""

    def __init__(
        self, client: EngineClient, target: aiohttp.ClientRequest, path: str, body: bytes, headers: Headers
    ) -> None:
        self._client = client
        self._target = target
        self._path = path
        self._body = body
        self._headers = headers
        self._connection: Connection | None = None

    async def __aenter__(self) -> EngineAnswer:
        self._connection = connection = await self._client._connect(self._target)
        try:
            await self._send(connection)
            return await self._answer(connection)
        except BaseException:
            connection.close()
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._connection is not None, "left only after it was entered"
        self._connection.release()  # which closes it where the answer was not read to its end

    async def _send(self, connection: Connection) -> None:
        protocol = connection.protocol
        assert protocol is not None, "a connection that was just given has one"
        protocol.set_response_params(
            read_until_eof=True, auto_decompress=False, read_timeout=self._client._timeout.sock_read
        )
        body = self._body
        writer = StreamWriter(protocol, asyncio.get_running_loop())
        await writer.write_headers(f"POST {self._path} HTTP/1.1", self._client._head(self._target, body, self._headers))
        if len(body) > PART_BYTES:
            whole = memoryview(body)
            for start in range(0, len(body), PART_BYTES):
                await writer.write(whole[start : start + PART_BYTES], drain=False)
                await asyncio.sleep(0)
            body = b""
        await writer.write_eof(body)
        protocol.start_timeout()

    async def _answer(self, connection: Connection) -> EngineAnswer:
        protocol = connection.protocol
        assert protocol is not None, "it had one when the request was sent"
        while True:
            try:
                message, content = await protocol.read()
            except HttpProcessingError as error:
                raise aiohttp.ClientResponseError(
                    self._target.request_info, (), status=error.code, message=error.message, headers=error.headers
                ) from error
            if message.code not in _INTERIM or message.code == 101:
                return EngineAnswer(connection, message.code, message.headers, content)
