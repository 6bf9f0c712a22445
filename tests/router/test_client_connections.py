"""Client connections: usual requests are served on them as they are, others by aiohttp's server, in any order."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from unittest.mock import Mock

import pytest
from aiohttp import web
from connections import connect
from fake_engine import FakeEngine
from patience import in_time
from router_stage import RouterClient, Stage

from router.front import connections
from router.front.client import Client
from router.front.connection import MAX_AHEAD_BYTES, ClientConnection
from router.front.route import Route
from router.front.usual_head import MAX_HEAD_BYTES, usual_head

GET = b"GET /health HTTP/1.1\r\nHost: r\r\n\r\n"
UNUSUAL = "TE: trailers"
"""A field that changes nothing, but that makes a request one for aiohttp."""


def head(*fields: str, path: str = "/v1/completions") -> bytes:
    return "\r\n".join([f"POST {path} HTTP/1.1", "Host: r", *fields, "", ""]).encode()


def post(*fields: str, **body: Any) -> bytes:
    data = json.dumps({"prompt": [1, 2, 3], **body}).encode()
    return head(*fields, f"Content-Length: {len(data)}") + data


async def answer(reader: asyncio.StreamReader) -> tuple[dict[str, str], bytes]:
    """One answer; its first line stands under an empty name."""
    lines = (await in_time(reader.readuntil(b"\r\n\r\n"))).decode().split("\r\n")[:-2]
    fields = {"": lines[0]} | {name.lower(): value for name, value in (line.split(": ", 1) for line in lines[1:])}
    if "content-length" in fields:
        return fields, await reader.readexactly(int(fields["content-length"]))
    body = b""
    while size := int(await in_time(reader.readline()), 16):
        body += (await reader.readexactly(size + 2))[:-2]
    await reader.readexactly(2)
    return fields, body


@pytest.fixture
async def router(stage: Stage) -> RouterClient:
    return await stage.router(await stage.engine(), send_token_ids="never")


@pytest.mark.parametrize("route", Route)
def test_a_usual_head_is_read(route: Route) -> None:
    data = head("X-A:  b c\t", "x-none:", "X-A: ü", "content-length: 7", "Connection: Keep-Alive", path=route)
    found = usual_head(data + b"{body..")
    assert found is not None
    assert (found.route, found.length, found.size) == (route, 7, len(data))
    assert found.headers.getall("x-a") == ["b c", "ü"]
    assert (found.headers["X-None"], found.headers["Host"]) == ("", "r")


@pytest.mark.parametrize(
    "data",
    [
        GET,
        head(),
        head("Content-Length: 1", path="/v1/models"),
        head("Content-Length: 1", path="/v1/completions?x=1"),
        head("Content-Length: 1", path="/v1/completions/"),
        head("Content-Length: 1", "Content-Length: 1"),
        head("Content-Length: +1"),
        head("Content-Length: 1_0"),
        head("Content-Length: 1, 1"),
        head("Content-Length: \u0661"),
        head("Content-Length: "),
        head("Content-Length: 1", "Transfer-Encoding: chunked"),
        head("Content-Length: 1", "transfer-encoding: x"),
        head("Content-Length: 1", "Content-Encoding: gzip"),
        head("Content-Length: 1", "Expect: 100-continue"),
        head("Content-Length: 1", "Upgrade: h2c"),
        head("Content-Length: 1", "Connection: close"),
        head("Content-Length: 1", "Connection: keep-alive, X-A"),
        head("Content-Length: 1", "X A: b"),
        head("Content-Length: 1", "X-A : b"),
        head("Content-Length: 1", " folded"),
        head("Content-Length: 1", "X-A: b\0"),
        head("Content-Length: 1", "X-A: b\rX-B: c"),
        head("Content-Length: 1", "X-A: b\nX-B: c"),
        head("Content-Length: 1", "no colon"),
        head("Content-Length: 1", "X-A: " + MAX_HEAD_BYTES * "b"),
        head("Content-Length: 1", *(f"X-{number}: b" for number in range(101))),
        head("Content-Length: 1").replace(b"HTTP/1.1", b"HTTP/1.0"),
        head("Content-Length: 1").replace(b"\r\n", b"\n"),
        head("Content-Length: 1").replace(b"POST ", b"post "),
        b"\r\n" + head("Content-Length: 1"),
        head("Content-Length: 1")[:-1],
    ],
)
def test_what_needs_a_second_thought_is_left_to_others(data: bytes) -> None:
    assert usual_head(data) is None


@pytest.mark.parametrize("body", [{}, {"stream": True}, {"prompt": "a"}, {"model": "nobody's"}, {"prompt": []}])
async def test_a_request_is_answered_alike_whoever_reads_it(router: RouterClient, body: dict[str, Any]) -> None:
    async def ask(*fields: str) -> tuple[dict[str, str], bytes]:
        reader, writer = await connect(router.url)
        writer.write(post("X-Request-Id: mine", *fields, **body))
        fields_back, got = await answer(reader)
        writer.close()
        for name in ("date", "server", "x-kvsteer-request-id"):
            fields_back.pop(name, None)
        return fields_back, got

    usual, unusual = await ask(), await ask(UNUSUAL)
    assert usual == unusual
    assert usual[0]["x-request-id"] == "mine"


async def test_a_connection_carries_requests_of_all_kinds_in_turn(router: RouterClient) -> None:
    reader, writer = await connect(router.url)
    for sent in (GET, post(), GET, GET, post(UNUSUAL), post(), post(stream=True), GET, post()):
        writer.write(sent)
        fields, _ = await answer(reader)
        assert fields[""].startswith("HTTP/1.1 200 ")
    writer.close()


async def test_requests_that_come_ahead_are_answered_in_order(router: RouterClient) -> None:
    reader, writer = await connect(router.url)
    sent = [post(f"X-Request-Id: {number}") for number in range(4)]
    writer.write(b"".join(sent[:3]) + post("X-Request-Id: 3", UNUSUAL) + sent[0])
    assert [(await answer(reader))[0]["x-request-id"] for _ in range(5)] == ["0", "1", "2", "3", "0"]
    writer.close()


async def test_a_client_far_ahead_is_read_no_further_and_loses_nothing(stage: Stage) -> None:
    engine = await stage.engine()
    router = await stage.router(engine)
    engine.hold.clear()
    reader, writer = await connect(router.url)
    padding = f"X-Padding: {'x' * 1000}"
    count = 4 * MAX_AHEAD_BYTES // 1000
    for _ in range(count):
        writer.write(post(padding))
    engine.hold.set()
    for _ in range(count):
        assert (await answer(reader))[0][""].startswith("HTTP/1.1 200 ")
    writer.close()


class Reading:
    """A host that answers at once, and a transport whose client reads only when it is told to."""

    draining = False

    def __init__(self) -> None:
        self.answered = 0
        self.transport = Mock(spec=asyncio.Transport)
        self.transport.get_extra_info.return_value = None
        self.transport.is_closing.return_value = False
        self.bodies = self.opened = self.lost = self.make = Mock()

    async def serve(self, client: Client, route: Route) -> None:
        self.answered += 1
        await client.answer(200, [], b"{}")


async def test_who_does_not_read_answers_gets_no_more_of_them() -> None:
    host = Reading()
    connection = ClientConnection(host)
    connection.connection_made(host.transport)
    connection.pause_writing()
    connection.data_received(3 * post())
    for room in (1, 2):
        assert connection.task is not None
        await connection.task
        await asyncio.sleep(0)  # what follows a task
        assert (host.answered, connection.task) == (room, None)
        connection.resume_writing()
        connection.pause_writing()
    assert connection.task is not None
    await connection.task
    assert host.answered == 3


async def test_a_body_may_come_in_parts(router: RouterClient) -> None:
    reader, writer = await connect(router.url)
    request = post()
    for place in range(0, len(request), 60):
        writer.write(request[place : place + 60])
        await writer.drain()
        await asyncio.sleep(0)
    assert (await answer(reader))[0][""].startswith("HTTP/1.1 200 ")
    writer.close()


@pytest.mark.parametrize("fields", [(), (UNUSUAL,)])
async def test_the_rest_of_a_refused_body_is_dropped_and_the_next_request_served(
    stage: Stage, fields: tuple[str, ...]
) -> None:
    engine = await stage.engine()
    router = await stage.router(engine, max_body_bytes=1000)
    reader, writer = await connect(router.url)
    writer.write(head(*fields, "Content-Length: 5000") + 2000 * b"x")
    assert (await answer(reader))[0][""].startswith("HTTP/1.1 413 ")
    writer.write(3000 * b"x" + post())
    assert (await answer(reader))[0][""].startswith("HTTP/1.1 200 ")
    writer.close()
    assert len(engine.asked) == 1


async def test_the_rest_of_a_refused_body_is_not_waited_for_long(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("router.front.connection.LINGER_SECONDS", 0.02)
    router = await stage.router(await stage.engine(), max_body_bytes=1000)
    reader, writer = await connect(router.url)
    writer.write(head("Content-Length: 5000"))
    assert (await answer(reader))[0][""].startswith("HTTP/1.1 413 ")
    assert await in_time(reader.read()) == b""
    writer.close()


@pytest.mark.parametrize("first", [GET, post()])
async def test_an_idle_connection_is_closed(stage: Stage, monkeypatch: pytest.MonkeyPatch, first: bytes) -> None:
    monkeypatch.setattr(connections, "CLIENT_KEEPALIVE_SECONDS", 0.02)
    monkeypatch.setattr("router.front.server.CLIENT_KEEPALIVE_SECONDS", 0.02)
    router = await stage.router(await stage.engine(), head_timeout=0.2)
    reader, writer = await connect(router.url)
    writer.write(first)
    await answer(reader)
    assert await in_time(reader.read()) == b""
    writer.close()


async def test_a_large_answer_comes_whole(stage: Stage) -> None:
    engine = FakeEngine()

    async def large(engine: FakeEngine, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        return web.Response(body=bytes(300_000), headers={"Content-Type": "text/x"})

    engine.answer = large
    router = await stage.router(await stage.engine(engine))
    reader, writer = await connect(router.url)
    writer.write(post())
    fields, body = await answer(reader)
    assert (fields["content-type"], body) == ("text/x", bytes(300_000))
    writer.close()
