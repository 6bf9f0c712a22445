"""Requests handed to engines over the connector itself: what arrives, what comes back, which connections are kept."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from patience import in_time

from router.front import engine_client
from router.front.engine_client import PART_BYTES, EngineClient
from router.front.engine_connection import MOST_UNREAD_BYTES, EngineConnection
from router.front.server import engine_session

WELL = b"HTTP/1.1 200 OK\r\nContent-Type: Text/Event-Stream; charset=x\r\nContent-Length: 2\r\n\r\nok"


class Server:
    """Reads requests, keeps what it read, and answers as a test says."""

    def __init__(self, *answers: bytes) -> None:
        self.answers = list(answers)
        self.heads: list[bytes] = []
        self.bodies: list[bytes] = []
        self.talks: list[Any] = []  # one for each connection
        self.url = ""

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.talks.append(asyncio.current_task())
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:-2])
                self.heads.append(head)
                self.bodies.append(await reader.readexactly(int(fields[b"content-length"])))
                writer.write(self.answers.pop(0))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def served(
    *answers: bytes, keep: bool = True, key: str = "", silence: float = 60.0
) -> AsyncIterator[tuple[Server, EngineClient]]:
    server = Server(*answers)
    listener = await asyncio.start_server(server.talk, "127.0.0.1", 0, limit=2**24)
    port = listener.sockets[0].getsockname()[1]
    server.url = f"http://127.0.0.1:{port}"
    async with listener:
        async with engine_session(
            connect_timeout=60.0, first_byte_timeout=silence, replica_key=key, keep_connections=keep
        ) as session:
            yield server, EngineClient(session, shortest_silence=silence)
        await in_time(asyncio.gather(*server.talks))


async def whole(answer: EngineConnection) -> bytes:
    body = b""
    while part := await answer.part():
        body += part
    return body


async def ask(client: EngineClient, url: str, body: bytes = b"{}") -> tuple[int, bytes]:
    async with client.post(url, "/", body=body, headers=[]) as answer:
        return answer.status, await in_time(whole(answer))


async def test_a_request_arrives_as_it_was_given_and_its_answer_comes_back() -> None:
    fields = [("X-A", "1"), ("X-A", "2")]
    async with (
        served(WELL, key="secret") as (server, client),
        client.post(server.url, "/v1/x?y=1", body=b"{}", headers=fields) as answer,
    ):
        assert (answer.status, answer.content_type) == (200, "text/event-stream")
        assert await whole(answer) == b"ok"
    lines = server.heads[0].split(b"\r\n")
    assert lines[0] == b"POST /v1/x?y=1 HTTP/1.1"
    assert {b"X-A: 1", b"X-A: 2", b"Content-Length: 2", b"Authorization: Bearer secret"} <= set(lines)
    assert f"Host: {server.url.removeprefix('http://')}".encode() in lines
    assert server.bodies == [b"{}"]


@pytest.mark.parametrize("size", [PART_BYTES, PART_BYTES + 1, 3 * PART_BYTES + 7])
async def test_a_large_body_arrives_whole(size: int) -> None:
    body = bytes(range(251)) * (size // 251) + bytes(size % 251)
    async with served(WELL) as (server, client):
        assert await ask(client, server.url, body) == (200, b"ok")
    assert server.bodies == [body]


async def test_interim_answers_are_no_answers() -> None:
    async with served(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + WELL) as (
        server,
        client,
    ):
        assert await ask(client, server.url) == (200, b"ok")


@pytest.mark.parametrize(("keep", "connections"), [(True, 1), (False, 2)])
async def test_a_connection_is_kept_where_that_is_wanted(keep: bool, connections: int) -> None:
    async with served(WELL, WELL, keep=keep) as (server, client):
        for _ in range(2):
            assert await ask(client, server.url) == (200, b"ok")
    assert len(server.talks) == connections


async def test_a_connection_whose_answer_was_not_read_to_its_end_is_not_used_again() -> None:
    begun = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab"
    async with served(begun, WELL) as (server, client):
        async with client.post(server.url, "/", body=b"", headers=[]) as answer:
            assert await answer.part() == b"ab"
        assert await ask(client, server.url) == (200, b"ok")
    assert len(server.talks) == 2


JUNK = [
    b"nonsense\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n",
    b"HTTP/1.1 200 OK\r\n" + 10_000 * b"X-Padding: y\r\n",
]


@pytest.mark.parametrize("junk", JUNK)
async def test_what_is_no_answer_is_an_error_of_the_engines(junk: bytes) -> None:
    async with served(junk) as (server, client):
        with pytest.raises(aiohttp.ClientError):
            await ask(client, server.url)


async def test_an_engine_that_says_nothing_is_given_up() -> None:
    async with served(b"", silence=0.05) as (server, client):
        with pytest.raises(aiohttp.SocketTimeoutError):
            await in_time(ask(client, server.url))


async def test_nobody_listening_is_no_request_handed_over() -> None:
    async with served() as (server, _):
        pass
    async with engine_session(
        connect_timeout=60.0, first_byte_timeout=60.0, replica_key="", keep_connections=True
    ) as session:
        with pytest.raises(aiohttp.ClientConnectorError):
            await ask(EngineClient(session, shortest_silence=60.0), server.url)


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;x=y\r\no\r\n1\r\nk\r\n0\r\nX-Trailer: 1\r\n\r\n"


@pytest.mark.parametrize("answer", [CHUNKED, WELL, b"HTTP/1.1 204 No Content\r\n\r\n"])
async def test_the_end_of_a_framed_answer_is_seen_without_the_connections(answer: bytes) -> None:
    async with served(answer, WELL) as (server, client):
        assert (await ask(client, server.url))[1] in (b"ok", b"")
        assert await ask(client, server.url) == (200, b"ok")
    assert len(server.talks) == 1


class _Closes(Server):
    """Closes each connection after its first answer."""

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.talks.append(asyncio.current_task())
        await reader.readuntil(b"\r\n\r\n")
        writer.write(self.answers.pop(0))
        writer.close()


@pytest.mark.parametrize(
    ("answer", "whole_body"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\nok", b"ok"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok", None),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n", None),
        (b"HTTP/1.1 200 OK\r\nContent-Le", None),
        (b"", None),
    ],
)
async def test_a_connections_end_is_a_bodys_only_where_nothing_else_says_it(
    answer: bytes, whole_body: bytes | None
) -> None:
    server = _Closes(answer)
    listener = await asyncio.start_server(server.talk, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    async with (
        listener,
        engine_session(connect_timeout=60.0, first_byte_timeout=60.0, replica_key="", keep_connections=True) as session,
    ):
        asking = ask(EngineClient(session, shortest_silence=60.0), url, b"")
        if whole_body is None:
            with pytest.raises(aiohttp.ClientError):
                await asking
        else:
            assert await asking == (200, whole_body)


async def test_a_connection_on_which_more_came_than_was_asked_for_is_not_used_again() -> None:
    async with served(WELL + WELL, WELL) as (server, client):
        assert await ask(client, server.url) == (200, b"ok")
        assert await ask(client, server.url) == (200, b"ok")
    assert len(server.talks) == 2


async def test_a_connection_that_idled_for_long_is_not_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_client, "ENGINE_KEEPALIVE_SECONDS", 0.0)
    async with served(WELL, WELL) as (server, client):
        for _ in range(2):
            assert await ask(client, server.url) == (200, b"ok")
    assert len(server.talks) == 2


async def test_a_large_answer_waits_until_it_is_read() -> None:
    size = 16 * MOST_UNREAD_BYTES
    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size
    async with (
        served(head + bytes(size)) as (server, client),
        client.post(server.url, "/", body=b"", headers=[]) as answer,
    ):
        first = await answer.part()
        assert len(first) < size
        assert len(first) + len(await in_time(whole(answer))) == size
