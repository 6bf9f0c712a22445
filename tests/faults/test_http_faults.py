"""HTTP: clients that leave, dawdle or send nonsense, engines that refuse, die and come back.

Every test's first line says what comes in and what is right; the table in the README is made of these lines.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from contextlib import AsyncExitStack
from typing import Any
from urllib.parse import urlsplit

import pytest
from aiohttp import web
from connections import connect
from fake_engine import Answer, FakeEngine, answer_at_once, sse, stored
from patience import PATIENCE, in_time, until
from router_stage import RouterClient, Stage

COMPLETIONS = "/v1/completions"
ROUTES: list[tuple[str, dict[str, Any]]] = [
    (COMPLETIONS, {"prompt": "abc"}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}),
    ("/generate", {"text": "abc"}),
]
FIRST_EVENT = sse({"choices": [{"text": "1"}]})


def refuses(status: int) -> Answer:
    async def answer(engine: FakeEngine, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        return web.json_response({"error": {"message": "no"}}, status=status, headers={"Retry-After": "3"})

    return answer


def cut(request: web.Request) -> None:
    assert request.transport is not None
    request.transport.abort()


async def begun(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    await response.write(FIRST_EVENT)
    return response


async def never_ends(engine: FakeEngine, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    response = await begun(request)
    await asyncio.Event().wait()
    return response


async def dies_mid_stream(engine: FakeEngine, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    response = await begun(request)
    cut(request)
    return response


async def idle(router: RouterClient) -> bool:
    """Whether nothing is in flight and no prompt token waits."""
    async with router.session.get(f"{router.url}/metrics") as response:
        lines = (await response.text()).splitlines()
    books = [line for line in lines if line.startswith(("kvsteer_lane_in_flight", "kvsteer_lane_queued_tokens"))]
    return await router.in_flight() == 0 and all(line.endswith(" 0.0") for line in books)


async def talk(router: RouterClient, sent: bytes) -> bytes:
    """Send bytes over a connection of their own; everything that comes back until the router closes it."""
    reader, writer = await connect(router.url)
    try:
        writer.write(sent)
        return await in_time(reader.read())
    finally:
        writer.close()


def head(*fields: str, path: str = COMPLETIONS) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: router", *fields, "", ""]
    return "\r\n".join(lines).encode()


# H1 to H3


@pytest.mark.fault("H1")
@pytest.mark.parametrize("streamed", [False, True])
async def test_a_client_that_closes_during_prefill_is_seen_by_the_engine(stage: Stage, streamed: bool) -> None:
    """A client closes in the midst of a long prefill, streaming or not: the engine sees it before it answers."""
    engine = await stage.engine()
    engine.hold.clear()
    router = await stage.router(engine)
    asking = asyncio.create_task(router.raw(COMPLETIONS, {"prompt": "abc", "stream": streamed}))
    await until(lambda: engine.asked, "the engine has the request")
    asking.cancel()
    await in_time(engine.asked[0].left.wait())


@pytest.mark.fault("H2")
async def test_client_errors_open_no_breaker(stage: Stage) -> None:
    """An engine answers 25 times 400, then well: each is passed on once, and the good request passes."""
    engine = await stage.engine()
    router = await stage.router(engine)
    engine.answer = refuses(400)
    statuses = [(await router.raw(COMPLETIONS, {"prompt": "a"}))[0] for _ in range(25)]
    engine.answer = answer_at_once
    assert statuses == [400] * 25
    assert (await router.complete([1]))[0] == 200
    assert len(engine.asked) == 26


@pytest.mark.fault("H3")
async def test_full_engines_start_no_retry_storm(stage: Stage) -> None:
    """All engines answer 503 ten times, then well: one other is tried at most, and the good request passes."""
    engines = await stage.engines(4)
    router = await stage.router(*engines)
    for engine in engines:
        engine.answer = refuses(503)
    for number in range(10):
        asked = sum(len(engine.asked) for engine in engines)
        status, _ = await router.raw(COMPLETIONS, {"prompt": "a", "stream": number % 2 == 0})
        assert status == 503
        assert sum(len(engine.asked) for engine in engines) - asked <= 2
    for engine in engines:
        engine.answer = answer_at_once
    assert (await router.complete([1]))[0] == 200


@pytest.mark.fault("H3")
async def test_a_full_fleet_is_not_asked_everything_twice(stage: Stage) -> None:
    """A fleet is full for 200 requests: second tries run out, but for one in five requests."""
    engines = await stage.engines(2)
    router = await stage.router(*engines)
    for engine in engines:
        engine.answer = refuses(503)
    await asyncio.gather(*(router.complete([number]) for number in range(200)))
    assert 200 < sum(len(engine.asked) for engine in engines) <= 200 + 20 + 40


# H4 to H6


@pytest.mark.fault("H4")
@pytest.mark.parametrize(("path", "body"), ROUTES)
async def test_an_engine_that_dies_mid_stream_is_told_of(stage: Stage, path: str, body: dict[str, Any]) -> None:
    """An engine dies mid-stream: the client sees an SSE error event and the end; nobody else is asked."""
    engines = await stage.engines(2)
    for engine in engines:
        engine.answer = dies_mid_stream
    router = await stage.router(*engines)
    status, raw = await router.raw(path, {**body, "stream": True})
    assert status == 200
    first, last, nothing = raw.split(b"\n\n")
    assert first + b"\n\n" == FIRST_EVENT
    assert json.loads(last.removeprefix(b"data: "))["error"]["code"] == "engine_lost"
    assert nothing == b""
    assert sum(len(engine.asked) for engine in engines) == 1


@pytest.mark.fault("H5")
@pytest.mark.parametrize("streamed", [False, True])
async def test_an_engine_killed_under_load_costs_no_client_an_error(stage: Stage, streamed: bool) -> None:
    """Three of four engines go at once with requests in hand and more to come: every client gets its answer."""
    engines = await stage.engines(4)
    router = await stage.router(*engines, policy="round_robin")
    body = {"prompt": "a", "stream": streamed}
    engines[0].hold.clear()
    held = [asyncio.create_task(router.raw(COMPLETIONS, body)) for _ in range(16)]
    await until(lambda: len(engines[0].asked) == 4, "four requests are held")
    await asyncio.gather(*(engine.stop() for engine in engines[:3]))
    results = await asyncio.gather(*held, *(router.raw(COMPLETIONS, body) for _ in range(16)))
    assert Counter(status for status, _ in results) == {200: 32}
    await until(lambda: idle(router), "nothing is in flight")


@pytest.mark.fault("H5")
async def test_engines_that_take_connections_and_reset_them_cost_no_client_an_error(stage: Stage) -> None:
    """Two of three engines are gone but still take connections for a moment: every client gets its answer."""
    engines = await stage.engines(3)
    router = await stage.router(*engines, policy="round_robin", probe_interval=60.0)
    async with AsyncExitStack() as stack:
        for engine in engines[:2]:
            await engine.stop()
            host, port = urlsplit(engine.url).hostname, urlsplit(engine.url).port
            dying = await asyncio.start_server(lambda _, writer: writer.transport.abort(), host, port)
            await stack.enter_async_context(dying)
        results = await asyncio.gather(*(router.raw(COMPLETIONS, {"prompt": "a"}) for _ in range(6)))
    assert Counter(status for status, _ in results) == {200: 6}


@pytest.mark.fault("H6")
async def test_a_killed_engine_that_comes_back_is_used_from_its_first_probe_on(stage: Stage) -> None:
    """A killed engine comes back: it is used again once it has answered one probe."""
    back, other = await stage.engine(OnceProbedEngine()), await stage.engine()
    router = await stage.router(back, other, policy="round_robin", probe_timeout=2 * PATIENCE)
    await back.stop()
    await router.until_state(back, "gone")
    back.probes_left = 1
    await back.start()
    await used_again(router, back)


@pytest.mark.fault("H6")
async def test_an_engine_that_failed_every_request_is_tried_again(stage: Stage) -> None:
    """An engine answers 500 to everything, then well: left alone meanwhile, used again after a while."""
    engines = await stage.engines(2)
    router = await stage.router(*engines, policy="round_robin", probe_interval=0.5)
    engines[0].answer = refuses(500)
    for _ in range(20):
        assert (await router.complete([1]))[0] == 200
    assert len(engines[0].asked) < 10
    engines[0].answer = answer_at_once
    await used_again(router, engines[0])


class OnceProbedEngine(FakeEngine):
    """Answers so many probes and keeps the next ones waiting."""

    probes_left = 1_000_000

    async def _server_info(self, request: web.Request) -> web.Response:
        self.probes_left -= 1
        if self.probes_left < 0:
            await asyncio.Event().wait()
        return await super()._server_info(request)


async def used_again(router: RouterClient, engine: FakeEngine) -> None:
    """Send requests until the engine has one."""
    before = len(engine.asked)

    async def asked() -> bool:
        assert (await router.complete([1]))[0] == 200
        return len(engine.asked) > before

    await until(asked, "the engine is used again")


# H7, H8


@pytest.mark.fault("H7")
@pytest.mark.parametrize("sent", [b"", b"POST /v1/completions HT", head("Content-Length: 5")[:-2]])
async def test_half_a_head_is_closed_at_a_limit(stage: Stage, sent: bytes) -> None:
    """A client sends nothing, or half a request head: the connection is closed at the limit."""
    router = await stage.router(await stage.engine(), head_timeout=0.5)
    begun_at = time.monotonic()
    await talk(router, sent)
    assert time.monotonic() - begun_at >= 0.5
    assert (await router.complete([1]))[0] == 200


@pytest.mark.fault("H7")
async def test_a_head_sent_a_byte_at_a_time_is_closed_at_a_limit(stage: Stage) -> None:
    """A client sends a head a byte at a time, after a good request: the connection is closed at the limit."""
    router = await stage.router(await stage.engine(), head_timeout=0.5)
    reader, writer = await connect(router.url)
    body = b'{"prompt": "a"}'
    writer.write(head(f"Content-Length: {len(body)}") + body)
    assert await reader.readline() == b"HTTP/1.1 200 OK\r\n"
    answer = asyncio.create_task(reader.read())
    async with asyncio.timeout(PATIENCE):
        while not answer.done():
            writer.write(b"P")
            await asyncio.wait({answer}, timeout=0.02)
    writer.close()


@pytest.mark.fault("H7")
async def test_a_body_sent_a_byte_at_a_time_is_closed_at_a_limit(stage: Stage) -> None:
    """A client sends a body a byte at a time: 408 at the limit, and the end; nothing is forwarded."""
    engine = await stage.engine()
    router = await stage.router(engine, body_timeout=0.3)
    reader, writer = await connect(router.url)
    writer.write(head("Content-Length: 100000"))
    answer = asyncio.create_task(reader.readuntil(b"}}"))
    closed = asyncio.create_task(writer.wait_closed())
    async with asyncio.timeout(PATIENCE):
        while not closed.done():
            writer.write(b" ")
            await asyncio.wait({closed}, timeout=0.02)
    await asyncio.gather(closed, return_exceptions=True)  # a reset is an end too
    assert (await answer).startswith(b"HTTP/1.1 408 ")
    assert b'"body_timeout"' in await answer
    assert engine.asked == []
    assert await idle(router)


@pytest.mark.fault("H7")
async def test_a_long_answer_is_not_taken_for_a_slow_head(stage: Stage) -> None:
    """A request runs for longer than a head may take: it is answered."""
    engine = await stage.engine()
    engine.hold.clear()
    router = await stage.router(engine, head_timeout=0.5)
    asking = asyncio.create_task(router.complete([1]))
    await asyncio.wait({asking}, timeout=1.5)
    engine.hold.set()
    assert (await asking)[0] == 200


@pytest.mark.fault("H7")
async def test_an_answer_that_nobody_reads_is_ended_at_a_limit(stage: Stage) -> None:
    """A client asks for a long stream and does not read it: closed at the limit, and the engine sees it."""
    engine = await stage.engine()

    async def endless(engine: FakeEngine, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        response = await begun(request)
        while True:
            await response.write(sse({"choices": [{"text": "x" * 10_000}]}))

    engine.answer = endless
    router = await stage.router(engine, write_timeout=0.3)
    _, writer = await connect(router.url)
    raw = b'{"prompt": "a", "stream": true}'
    writer.write(head(f"Content-Length: {len(raw)}") + raw)
    await until(lambda: engine.asked, "the engine has the request")
    await in_time(engine.asked[0].left.wait())
    writer.close()
    await until(lambda: idle(router), "the books are empty")


@pytest.mark.fault("H8")
async def test_the_preface_of_http_2_is_survived(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    """A client begins with HTTP/2's preface: it is refused, and the next client is served."""
    router = await stage.router(await stage.engine())
    for preface in (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0" * 500):
        answer = await talk(router, preface)
        assert not answer or answer.startswith(b"HTTP/1."), answer
        assert not answer.split(b" ")[1:2] or answer.split(b" ")[1] == b"400"
    assert not [record for record in caplog.records if record.name.startswith("router.front.server")]
    assert (await router.complete([1]))[0] == 200


# H9, H10


class LockedEngine(FakeEngine):
    """Answers 401 to whoever does not send its key, probes included, as SGLang and vLLM do with ``--api-key``."""

    def __init__(self, key: str) -> None:
        super().__init__()
        self.key = key

    def add_routes(self, app: web.Application) -> None:
        app.middlewares.append(self._locked)
        super().add_routes(app)

    @web.middleware
    async def _locked(self, request: web.Request, handler: Any) -> web.StreamResponse:
        if request.headers.getall("Authorization", []) != [f"Bearer {self.key}"]:
            return web.json_response({"error": "Unauthorized"}, status=401)
        response: web.StreamResponse = await handler(request)
        return response


@pytest.mark.fault("H9")
@pytest.mark.parametrize("tokenizer", ["byte", "auto"])
async def test_replicas_get_their_own_key_and_never_a_clients(stage: Stage, tokenizer: str) -> None:
    """A replica key is configured and a client sends its own: replicas get theirs alone, on probes too."""
    engine = await stage.engine(LockedEngine("the-replicas"))
    router = await stage.router(engine, replica_key="the-replicas", tokenizer=tokenizer)
    for path, body in ROUTES:
        status, _ = await router.raw(path, body, Authorization="Bearer a-clients")
        assert status == 200
    status, _ = await router.post("/tokenize", {"prompt": "a"}, Authorization="Bearer a-clients")
    assert status == 200
    assert {asked.headers["Authorization"] for asked in engine.asked} == {"Bearer the-replicas"}


@pytest.mark.fault("H9")
async def test_without_keys_of_its_own_a_router_hands_a_clients_on(stage: Stage) -> None:
    """No key is configured and a client sends its own: the engine gets it."""
    engine = await stage.engine()
    router = await stage.router(engine)
    await router.raw(COMPLETIONS, {"prompt": "a"}, Authorization="Bearer a-clients")
    assert engine.asked[0].headers["Authorization"] == "Bearer a-clients"


@pytest.mark.fault("H9")
async def test_a_key_for_the_router_does_not_leave_it(stage: Stage) -> None:
    """Clients need a key of the router's: without it 401 and nothing forwarded; with it the key stays here."""
    engine = await stage.engine()
    router = await stage.router(engine, api_keys=("k1", "k2"))
    for headers in ({}, {"Authorization": "Bearer k3"}, {"Authorization": "Basic k1"}):
        status, answer = await router.post(COMPLETIONS, {"prompt": "a"}, **headers)
        assert (status, answer["error"]["code"]) == (401, "invalid_api_key")
    assert engine.asked == []
    assert (await router.raw(COMPLETIONS, {"prompt": "a"}, Authorization="Bearer k2"))[0] == 200
    assert "Authorization" not in engine.asked[0].headers


@pytest.mark.fault("H10")
async def test_headers_of_one_hop_stay_on_it(stage: Stage) -> None:
    """Hop-by-hop headers, named ones included, come from either side: they go no further; Host is the engine's."""
    engine = await stage.engine()

    async def answer(engine: FakeEngine, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        headers = {"Connection": "X-Hop", "X-Hop": "1", "Keep-Alive": "timeout=9", "X-End": "2"}
        return web.json_response({}, headers=headers)

    engine.answer = answer
    router = await stage.router(engine)
    body = b'{"prompt": "a"}'
    fields = ("Connection: close, X-Mine", "X-Mine: 1", "TE: trailers", "Proxy-Authorization: x", "X-End: 3")
    raw = await talk(router, head(*fields, f"Content-Length: {len(body)}") + body)
    got, sent = engine.asked[0].headers, raw.split(b"\r\n\r\n")[0].lower()
    assert {"X-Mine", "TE", "Proxy-Authorization"}.isdisjoint(got)
    assert (got["X-End"], got["Host"]) == ("3", engine.url.removeprefix("http://"))
    assert b"x-hop" not in sent
    assert b"keep-alive: timeout" not in sent
    assert b"x-end: 2" in sent


@pytest.mark.fault("H10")
async def test_a_body_in_chunks_reaches_the_engine_as_a_whole(stage: Stage) -> None:
    """A request body comes in chunks: the engine gets the same bytes with a length."""
    engine = await stage.engine()
    router = await stage.router(engine, send_token_ids="never")
    chunks = b"7\r\n" + b'{"promp' + b"\r\n8;x=y\r\n" + b't": "a"}' + b"\r\n0\r\nX-Trailer: 1\r\n\r\n"
    raw = await talk(router, head("Transfer-Encoding: chunked", "Connection: close") + chunks)
    assert raw.startswith(b"HTTP/1.1 200 ")
    assert engine.asked[0].body["prompt"] == "a"
    assert "Transfer-Encoding" not in engine.asked[0].headers


@pytest.mark.fault("H10")
@pytest.mark.parametrize(
    ("fields", "first"),
    [
        (("Expect: 100-continue", "Content-Length: 15"), b"HTTP/1.1 100 Continue\r\n\r\n"),
        (("Expect: 100-continue", "Content-Length: 99999999999"), b"HTTP/1.1 413 "),
        (("Expect: a-miracle", "Content-Length: 15"), b"HTTP/1.1 417 "),
    ],
)
async def test_a_client_that_waits_to_be_asked_is_asked_when_its_body_is_wanted(
    stage: Stage, fields: tuple[str, ...], first: bytes
) -> None:
    """Expect: 100-continue comes: 100 where the body is wanted, 413 where it is too long, 417 for others."""
    engine = await stage.engine()
    router = await stage.router(engine)
    reader, writer = await connect(router.url)
    writer.write(head(*fields, "Connection: close"))
    got = await in_time(reader.readexactly(len(first)))
    assert got == first
    if b"100" in first:
        writer.write(b'{"prompt": "a"}')
        assert (await in_time(reader.read())).startswith(b"HTTP/1.1 200 ")
    writer.close()
    assert len(engine.asked) == (b"100" in first)


@pytest.mark.fault("H10")
@pytest.mark.parametrize(
    "fields",
    [
        ("Transfer-Encoding: chunked", "Content-Length: 15"),
        ("Content-Length: 15", "Content-Length: 16"),
        ("Content-Length: 1_5",),
        ("Transfer-Encoding: chunked, identity",),
    ],
)
async def test_a_body_whose_length_is_in_doubt_is_refused(stage: Stage, fields: tuple[str, ...]) -> None:
    """A head says two things of its body's length, or nothing that can be read: 400; nothing is forwarded."""
    engine = await stage.engine()
    router = await stage.router(engine)
    answer = await talk(router, head(*fields) + b'{"prompt": "a"}')
    assert answer.split(b" ")[1] == b"400"
    assert engine.asked == []


# H11, H12

BAD_REQUESTS: list[tuple[int, Any]] = [
    (404, {"model": "nobody's", "prompt": "a"}),
    (400, b"{nope"),
    (400, b"\xff\xfe"),
    (400, b"[" * 100_000),
    (400, b"[]"),
    (400, {"prompt": [1, -1]}),
    (400, {"prompt": [1, 2.5]}),
    (400, {"prompt": [1, True]}),
    (400, {"prompt": [1, 2**40]}),
    (400, {"prompt": [1, 300]}),
    (413, b'{"prompt": "' + b"x" * 2000 + b'"}'),
]


@pytest.mark.fault("H11")
@pytest.mark.parametrize(("expected", "body"), BAD_REQUESTS)
async def test_what_no_engine_could_answer_is_refused_here(stage: Stage, expected: int, body: Any) -> None:
    """Unknown model, bad JSON, a body too large, bad ids: 404, 400, 413, 400 as OpenAI does; nothing forwarded."""
    engine = await stage.engine()
    engine.server_info["vocab_size"] = 257
    router = await stage.router(engine, max_body_bytes=1000 if expected == 413 else 1_000_000)
    status, answer = await router.post(COMPLETIONS, body)
    assert status == expected, answer
    assert answer["error"].keys() == {"message", "type", "param", "code"}
    assert engine.asked == []


@pytest.mark.fault("H12")
async def test_one_failed_probe_takes_no_replica_out(stage: Stage) -> None:
    """A probe fails once while requests run: the replica stays."""
    engine = await stage.engine()
    router = await stage.router(engine, probe_interval=0.05)
    engine.hold.clear()
    asking = asyncio.create_task(router.complete([1]))
    await until(lambda: engine.asked, "the engine has the request")
    failed_from, engine.health = engine.probes, 503
    await until(lambda: engine.probes > failed_from, "a probe has failed")
    engine.health = 200
    assert (await router.replica(engine))["state"] == "healthy"
    engine.hold.set()
    assert (await asking)[0] == 200
    assert (await router.complete([2]))[0] == 200


# L2, L3, L8, L9, S17


@pytest.mark.fault("L2")
@pytest.mark.parametrize("streamed", [False, True])
async def test_simultaneous_cold_requests_are_halved(stage: Stage, streamed: bool) -> None:
    """Ten cold requests at once, long to their first byte, two replicas: five each."""
    engines = await stage.engines(2)
    router = await stage.router(*engines)
    for engine in engines:
        engine.hold.clear()
    prompts = [[number * 20 + place for place in range(20)] for number in range(10)]
    asking = [
        asyncio.create_task(router.raw(COMPLETIONS, {"prompt": prompt, "stream": streamed})) for prompt in prompts
    ]
    await until(lambda: sum(len(engine.asked) for engine in engines) == 10, "all are sent")
    assert [len(engine.asked) for engine in engines] == [5, 5]
    for engine in engines:
        engine.hold.set()
    assert {status for status, _ in await asyncio.gather(*asking)} == {200}


@pytest.mark.fault("L3")
async def test_a_health_check_does_not_hide_load(stage: Stage) -> None:
    """Eight slow requests on A, a health check, a cold request: it goes to B."""
    busy, other = await stage.engines(2)
    router = await stage.router(busy, probe_interval=0.05)
    busy.hold.clear()
    asking = [asyncio.create_task(router.complete([number, 1, 2])) for number in range(8)]
    await until(lambda: len(busy.asked) == 8, "eight requests run on A")
    assert (await router.post("/replicas", {"url": other.url}))[0] == 201
    await router.until_state(other, "healthy")
    probes = busy.probes
    await until(lambda: busy.probes > probes, "A was probed")
    assert await router.status("/health") == 200
    assert (await router.complete([9, 1, 2]))[0] == 200
    assert (len(busy.asked), len(other.asked)) == (8, 1)
    busy.hold.set()
    assert {status for status, _ in await asyncio.gather(*asking)} == {200}


@pytest.mark.fault("L8")
@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("moment", ["before admission", "before the first token", "mid-stream"])
@pytest.mark.parametrize(("path", "body"), ROUTES)
async def test_clients_that_leave_take_their_load_with_them(
    stage: Stage, path: str, body: dict[str, Any], moment: str, streamed: bool
) -> None:
    """A client leaves before admission, before its first token or mid-stream: in-flight and waiting tokens are 0."""
    engine = await stage.engine()
    router = await stage.router(engine)
    raw = json.dumps({**body, "stream": streamed}).encode()
    engine.answer = never_ends
    if moment == "before the first token":
        engine.hold.clear()
    reader, writer = await connect(router.url)
    writer.write(head(f"Content-Length: {len(raw)}", path=path) + (raw[:-3] if moment == "before admission" else raw))
    if moment == "before admission":
        await until(lambda: admitted(router, 1), "the router waits for the body")
    else:
        await until(lambda: engine.asked, "the engine has the request")
        assert not await idle(router)
    if moment == "mid-stream" and streamed:
        assert await in_time(reader.readuntil(b"\n\n"))
    writer.close()
    await until(lambda: idle(router), "the books are empty")
    await until(lambda: admitted(router, 0), "nobody is inside")
    if engine.asked:
        await in_time(engine.asked[0].left.wait())


async def admitted(router: RouterClient, expected: int) -> bool:
    async with router.session.get(f"{router.url}/metrics") as response:
        return f"\nkvsteer_requests_inside {expected}.0\n" in await response.text()


@pytest.mark.fault("L9")
@pytest.mark.parametrize("status", [429, 503])
async def test_a_refused_request_leaves_nothing_behind(stage: Stage, status: int) -> None:
    """An engine answers 429 or 503: no index entry, no load, and nobody is drawn to the engine that refused."""
    engine = await stage.engine()
    router = await stage.router(engine)
    prompt = [number % 200 for number in range(600)]
    engine.answer = refuses(status)
    assert (await router.complete(prompt))[0] == status
    assert await idle(router)
    assert await router.matched(prompt) == {engine.url: 0}
    explained = (await router.post("/explain", {"prompt": prompt}))[1]["lanes"][0]
    cold = (await router.post("/explain", {"prompt": [7, *prompt[1:]]}))[1]["lanes"][0]
    assert explained["cost"] == pytest.approx(cold["cost"], rel=0.05)


@pytest.mark.fault("S17")
async def test_a_replica_taken_out_and_put_back_brings_no_blocks_and_keeps_its_load(stage: Stage) -> None:
    """A replica is removed and added again while a request runs: no old blocks, and the request still counts."""
    engine, other = FakeEngine(), await stage.engine()
    engine.publish_on()
    await stage.engine(engine)
    router = await stage.router(engine, other)
    prompt = list(range(40))
    engine.publish(stored(prompt, width=6))
    await router.until_matched(prompt, {engine.url: 36, other.url: 0})
    engine.answer = never_ends
    running = asyncio.create_task(router.raw(COMPLETIONS, {"prompt": prompt, "stream": True}))
    await until(lambda: engine.asked, "the request runs")
    async with router.session.delete(f"{router.url}/replicas", params={"url": engine.url}) as response:
        assert response.status == 200
    assert await router.matched(prompt) == {other.url: 0}
    for publisher in engine.publishers:  # another engine is behind the address when it comes back
        publisher.close()
    engine.publish_on()
    status, _ = await router.post("/replicas", {"url": engine.url})
    assert status == 201
    await router.until_state(engine, "healthy")
    assert await router.matched(prompt) == {engine.url: 0, other.url: 0}
    assert (await router.replica(engine))["requests"]["in_flight"] == 1
    assert not running.done()
    running.cancel()
    await until(lambda: idle(router), "nothing is in flight")
