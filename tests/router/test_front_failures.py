"""Engines that refuse, die, stall or come back, and clients that leave: what the other side sees, and what is left."""

from __future__ import annotations

import asyncio
import json
from random import Random
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from fake_engine import Answer, FakeEngine, answer_at_once, sse, stream
from patience import in_time, until
from router_stage import RouterClient, Stage

CHAT = {"messages": [{"role": "user", "content": "hi"}]}
ROUTES: list[tuple[str, dict[str, Any]]] = [
    ("/v1/completions", {"prompt": "abc"}),
    ("/v1/chat/completions", CHAT),
    ("/generate", {"text": "abc"}),
]


def cut(request: web.Request) -> None:
    assert request.transport is not None
    request.transport.abort()


async def dies_at_once(engine: FakeEngine, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    cut(request)
    return web.Response()


async def dies_after_its_head(engine: FakeEngine, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    kind = "text/event-stream" if body.get("stream") else "application/json"
    response = web.StreamResponse(headers={"Content-Type": kind})
    await response.prepare(request)
    await response.write(b"")
    cut(request)
    return response


async def dies_within_its_answer(engine: FakeEngine, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    await response.prepare(request)
    await response.write(b'{"choices":[')
    cut(request)
    return response


def refuses(status: int) -> Answer:
    async def answer(engine: FakeEngine, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        headers = {"Retry-After": "3"}
        return web.json_response({"error": {"message": "full"}}, status=status, headers=headers)

    return answer


async def idle(router: RouterClient) -> bool:
    return await router.in_flight() == 0


# Before the first byte


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("death", [dies_at_once, dies_after_its_head])
async def test_an_engine_that_dies_before_its_first_byte_is_replaced_by_another(
    stage: Stage, death: Answer, streamed: bool
) -> None:
    """H5: the client sees nothing of it."""
    engines = await stage.engines(2)
    router = await stage.router(*engines, policy="round_robin")
    engines[0].answer = death
    for _ in range(4):
        status, raw = await router.raw("/v1/completions", {"prompt": "a", "stream": streamed})
        assert status == 200
        assert b'"x"' in raw
    assert len(engines[1].asked) == 4
    assert len(engines[0].asked) >= 1
    assert await idle(router)


async def test_a_whole_answer_that_breaks_off_is_asked_again_elsewhere(stage: Stage) -> None:
    engines = await stage.engines(2)
    engines[0].answer = dies_within_its_answer
    router = await stage.router(*engines, policy="round_robin")
    assert (await router.complete([1, 2]))[0] == 200
    assert [len(engine.asked) for engine in engines] == [1, 1]


async def test_an_engine_that_is_killed_under_load_costs_no_client_an_error(stage: Stage) -> None:
    """H5, with requests in its hands and more arriving."""
    engines = await stage.engines(2)
    router = await stage.router(*engines, policy="round_robin")
    engines[0].hold.clear()
    held = [asyncio.create_task(router.complete([number, 2])) for number in range(8)]
    await until(lambda: len(engines[0].asked) == 4, "four requests are held")
    await engines[0].stop()
    later = [router.complete([number, 3]) for number in range(8)]
    results = await asyncio.gather(*held, *later)
    assert [status for status, _ in results] == [200] * 16
    assert await idle(router)


async def test_two_lost_engines_are_enough(stage: Stage) -> None:
    engines = await stage.engines(3)
    for engine in engines:
        engine.answer = dies_at_once
    router = await stage.router(*engines, policy="round_robin")
    status, answer = await router.complete([1, 2])
    assert (status, answer["error"]["code"]) == (502, "engine_lost")
    assert sum(len(engine.asked) for engine in engines) == 2
    assert await idle(router)


async def test_a_silent_engine_is_a_504_and_not_asked_again(stage: Stage) -> None:
    engines = await stage.engines(2)
    for engine in engines:
        engine.hold.clear()
    router = await stage.router(*engines, first_byte_timeout=0.3)
    status, answer = await router.complete([1, 2])
    assert (status, answer["error"]["code"]) == (504, "engine_timeout")
    assert sum(len(engine.asked) for engine in engines) == 1
    assert await idle(router)


# Answers with a status


@pytest.mark.parametrize("status", [400, 429, 500, 503])
async def test_an_engines_refusal_is_passed_on_and_starts_no_storm(stage: Stage, status: int) -> None:
    """H2, H3, L9."""
    engines = await stage.engines(2)
    router = await stage.router(*engines, policy="round_robin")
    for engine in engines:
        engine.answer = refuses(status)
    for _ in range(10):
        async with router.session.post(f"{router.url}/v1/completions", json={"prompt": "a"}) as response:
            assert response.status == status
            assert response.headers["Retry-After"] == "3"
            assert await response.json() == {"error": {"message": "full"}}
    asked = sum(len(engine.asked) for engine in engines)
    assert asked == 10 if status == 400 else 10 < asked <= 20
    assert await idle(router)
    for engine in engines:
        engine.answer = answer_at_once
        assert (await router.replica(engine))["state"] == "healthy"
        assert (await router.replica(engine))["tokens"]["prompt"] == 0
    assert (await router.complete([1]))[0] == 200


async def test_a_refused_prompt_is_not_expected_to_be_cached(stage: Stage) -> None:
    """L9: a sibling of a refused prompt is not drawn to the engine that refused it."""
    engines = await stage.engines(2)
    router = await stage.router(*engines)
    prompt = [number % 200 for number in range(3000)]
    chosen = set()
    for engine in engines:
        engine.answer = refuses(503)
    for _ in range(12):
        await router.complete(prompt)
        answer = (await router.post("/explain", {"prompt": prompt}))[1]
        costs = {lane["cost"] for lane in answer["lanes"]}
        assert max(costs) < 1.2 * min(costs)
        chosen.add(answer["chosen"]["url"])
    assert len(chosen) == 2


# After the first byte


@pytest.mark.parametrize("whole_event", [True, False])
@pytest.mark.parametrize("path", ["/v1/completions", "/generate"])
async def test_a_stream_that_breaks_off_ends_with_an_error_event(stage: Stage, path: str, whole_event: bool) -> None:
    """H4."""
    engines = await stage.engines(2)
    begun = sse({"choices": [{"text": "1"}]})

    async def dies(engine: FakeEngine, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(begun if whole_event else begun + b'data: {"cho')
        cut(request)
        return response

    for engine in engines:
        engine.answer = dies
    router = await stage.router(*engines)
    body = {"text" if path == "/generate" else "prompt": "a", "stream": True}
    status, raw = await router.raw(path, body)
    assert status == 200
    events = raw.split(b"\n\n")
    assert events[0] + b"\n\n" == begun
    assert json.loads(events[-2].removeprefix(b"data: "))["error"]["code"] == "engine_lost"
    assert raw.endswith(b"\n\n")
    assert sum(len(engine.asked) for engine in engines) == 1
    assert await idle(router)


async def test_an_answer_too_large_to_hold_that_breaks_off_is_cut_visibly(stage: Stage) -> None:
    engine = await stage.engine()

    async def dies(engine: FakeEngine, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        for _ in range(10):
            await response.write(b"x" * 1_000_000)
        cut(request)
        return response

    engine.answer = dies
    router = await stage.router(engine)
    with pytest.raises(aiohttp.ClientError):
        await router.raw("/v1/completions", {"prompt": "a"})
    assert await idle(router)


# Clients that leave


async def first_event_then_silence(
    engine: FakeEngine, request: web.Request, body: dict[str, Any]
) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    await response.write(sse({"choices": [{"text": "1"}]}))
    await asyncio.Event().wait()
    return response


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(("path", "body"), ROUTES)
async def test_a_client_that_leaves_before_the_first_token_frees_the_engine(
    stage: Stage, path: str, body: dict[str, Any], streamed: bool
) -> None:
    """H1, L8."""
    engine = await stage.engine()
    engine.hold.clear()
    router = await stage.router(engine)
    asking = asyncio.create_task(router.raw(path, {**body, "stream": streamed}))
    await until(lambda: engine.asked, "the engine has the request")
    assert await router.in_flight() == 1
    asking.cancel()
    await in_time(engine.asked[0].left.wait())
    await until(lambda: idle(router), "nothing is in flight")
    assert f'kvsteer_requests_total{{route="{path}",status="499"}} 1.0' in await metrics(router)


@pytest.mark.parametrize(("path", "body"), ROUTES)
async def test_a_client_that_leaves_mid_stream_frees_the_engine(stage: Stage, path: str, body: dict[str, Any]) -> None:
    engine = await stage.engine()
    engine.answer = first_event_then_silence
    router = await stage.router(engine)
    async with router.session.post(router.url + path, json={**body, "stream": True}) as response:
        await response.content.readuntil(b"\n\n")
        response.close()
    await in_time(engine.asked[0].left.wait())
    await until(lambda: idle(router), "nothing is in flight")
    lines = [line for line in (await metrics(router)).splitlines() if line.startswith("kvsteer_lane_queued_tokens")]
    assert [line.split()[-1] for line in lines] == ["0.0"]


async def metrics(router: RouterClient) -> str:
    async with router.session.get(f"{router.url}/metrics") as response:
        return await response.text()


# Away and back


async def test_a_killed_engine_that_comes_back_is_used_again(stage: Stage) -> None:
    """H6."""
    engines = await stage.engines(2)
    router = await stage.router(*engines, policy="round_robin", probe_interval=0.2)
    await engines[0].stop()
    await router.until_state(engines[0], "gone")
    assert (await router.complete([1]))[0] == 200
    assert len(engines[0].asked) == 0
    await engines[0].start()
    await router.until_state(engines[0], "healthy")
    await asyncio.gather(*(router.complete([number]) for number in range(4)))
    assert len(engines[0].asked) == 2


async def test_one_failed_probe_does_not_take_a_busy_replica_out(stage: Stage) -> None:
    """H12."""
    engine = await stage.engine()
    router = await stage.router(engine, probe_interval=0.05)
    engine.health = 503
    failed_from = engine.probes
    await until(lambda: engine.probes > failed_from, "a probe has failed")
    engine.health = 200
    assert (await router.complete([1]))[0] == 200
    assert (await router.replica(engine))["state"] == "healthy"


async def test_a_router_may_start_before_its_replicas(stage: Stage) -> None:
    engine = await stage.engine()
    await engine.stop()  # its port is known now
    router = await stage.router(engine, ready=False)
    assert await router.status("/ready") == 503
    assert (await router.replica(engine))["state"] == "starting"
    await engine.start()
    await until(lambda: _status(router, "/ready", 200), "the router is ready")
    assert (await router.complete([1]))[0] == 200


class _OddServer(FakeEngine):
    """Answers /server_info with whatever a test wants."""

    def __init__(self, status: int, body: bytes, **headers: str) -> None:
        super().__init__()
        self.odd = status, body, headers

    async def _server_info(self, request: web.Request) -> web.Response:
        status, body, headers = self.odd
        return web.Response(status=status, body=body, headers=headers)


@pytest.mark.parametrize(
    ("server", "said"),
    [
        (_OddServer(200, b"<html>hello</html>"), "is not JSON"),
        (_OddServer(200, b'{"served_model_name": "\xff"}'), "is not JSON"),
        (_OddServer(200, b"[" * 5000 + b"]" * 5000), "is not JSON"),
        (_OddServer(302, b"", Location="/v1/models"), "answers 302"),
        (_OddServer(401, b"{}"), "answers 401"),
    ],
)
async def test_a_replica_that_is_no_engine_is_named_with_what_it_answered(
    stage: Stage, server: _OddServer, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    await stage.engine(server)
    router = await stage.router(await stage.engine(), server)

    async def told() -> bool:
        return said in ((await router.replica(server))["trouble"] or "")

    await until(told, f"the trouble is: {said}")
    assert not [record for record in caplog.records if record.exc_info]


async def _status(router: RouterClient, path: str, expected: int) -> bool:
    return await router.status(path) == expected


@pytest.mark.parametrize("seed", [7])
async def test_whatever_happens_to_requests_the_books_return_to_zero(stage: Stage, seed: int) -> None:
    """L8 in a heap: engines that answer, refuse, die and stall, clients that leave at any time."""
    print("seed", seed)
    random = Random(seed)
    engines = await stage.engines(3)
    answers: list[Answer] = [
        answer_at_once,
        answer_at_once,
        refuses(503),
        dies_at_once,
        dies_within_its_answer,
        first_event_then_silence,
    ]

    async def anything(engine: FakeEngine, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        return await random.choice(answers)(engine, request, body)

    for engine in engines:
        engine.answer = anything
    router = await stage.router(*engines, idle_timeout=1.0)

    async def one() -> None:
        path, body = random.choice(ROUTES)
        try:
            async with asyncio.timeout(random.uniform(0.0, 0.2)):
                await router.raw(path, {**body, "stream": random.random() < 0.7})
        except (TimeoutError, aiohttp.ClientError):
            pass

    for _ in range(10):
        await asyncio.gather(*(one() for _ in range(30)))
    await until(lambda: idle(router), "nothing is in flight")
    for line in (await metrics(router)).splitlines():
        if line.startswith(("kvsteer_lane_in_flight", "kvsteer_lane_queued_tokens")):
            assert line.endswith(" 0.0"), line


async def test_an_answer_in_parts_keeps_its_stream_type(stage: Stage) -> None:
    engine = await stage.engine()

    async def typed(engine: FakeEngine, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        return await stream(request, [sse({"choices": []})])

    engine.answer = typed
    router = await stage.router(engine)
    async with router.session.post(f"{router.url}/v1/completions", json={"prompt": "a", "stream": True}) as response:
        assert response.content_type == "text/event-stream"
        assert "Content-Length" not in response.headers
