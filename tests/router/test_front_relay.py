"""What travels through the router, and how: bodies, headers, streams, ranks."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from aiohttp import web
from fake_engine import DONE, FakeEngine, sse, stream
from patience import in_time, until
from router_stage import Stage

CHAT = {"messages": [{"role": "user", "content": "hi"}]}
ROUTES: list[tuple[str, dict[str, Any]]] = [
    ("/v1/completions", {"prompt": "abc"}),
    ("/v1/chat/completions", CHAT),
    ("/generate", {"text": "abc"}),
]


@pytest.mark.parametrize(("path", "body"), ROUTES)
async def test_a_request_reaches_the_engine_as_it_was_sent_and_the_answer_comes_back_as_it_is(
    stage: Stage, path: str, body: dict[str, Any]
) -> None:
    engine = await stage.engine()
    router = await stage.router(engine, send_token_ids="never")
    raw = json.dumps({**body, "temperature": 0.5, "unknown": [1, {"a": None}]}, indent=1).encode()
    status, through = await router.raw(f"{path}?x=1&y=two", raw)
    async with router.session.post(engine.url + path, data=raw) as response:
        direct = await response.read()
    assert (status, through) == (200, direct)
    assert engine.asked[0].path == f"{path}?x=1&y=two"
    assert engine.asked[0].body == json.loads(raw)


@pytest.mark.parametrize(
    ("path", "body", "sent"),
    [
        ("/v1/completions", {"prompt": "abc"}, {"prompt": [256, 97, 98, 99]}),
        ("/generate", {"text": "abc"}, {"input_ids": [256, 97, 98, 99]}),
        ("/v1/chat/completions", CHAT, CHAT),
        ("/v1/completions", {"prompt": "abc", "echo": True}, {"prompt": "abc", "echo": True}),
        ("/v1/completions", {"prompt": ["abc", "d"]}, {"prompt": ["abc", "d"]}),
        ("/generate", {"text": "abc", "add_special_tokens": False}, {"text": "abc", "add_special_tokens": False}),
    ],
)
async def test_token_ids_that_a_replica_has_confirmed_go_in_a_text_s_place(
    stage: Stage, path: str, body: dict[str, Any], sent: dict[str, Any]
) -> None:
    """So that nobody tokenizes twice; a conversation has no such form, and some bodies ask for the text itself."""
    engine = await stage.engine()
    router = await stage.router(engine)
    await router.post(path, {"stop": ["\n"], **body})
    assert engine.asked[0].body == {"stop": ["\n"], **sent}


async def test_ids_of_a_tokenizer_that_nobody_confirmed_are_not_sent(stage: Stage) -> None:
    """A wrong tokenizer may cost hits, never answers."""
    engine = await stage.engine()
    router = await stage.router(engine, tokenizer="byte")
    await router.post("/v1/completions", {"prompt": "abc"})
    trusting = await stage.router(engine, tokenizer="byte", send_token_ids="always")
    await trusting.post("/v1/completions", {"prompt": "abc"})
    assert [asked.body["prompt"] for asked in engine.asked] == ["abc", [256, 97, 98, 99]]


async def test_headers_that_belong_to_one_connection_stay_there(stage: Stage) -> None:
    """H10."""
    engine = await stage.engine()
    router = await stage.router(engine)
    sent = {
        "Authorization": "Bearer secret",
        "X-Request-Id": "7",
        "Connection": "keep-alive, X-Mine",
        "X-Mine": "1",
        "TE": "trailers",
        "Keep-Alive": "5",
        "Expect": "100-continue",
        "Accept-Encoding": "gzip, br",
        "Content-Type": "application/json; charset=utf-8",
    }
    status, _ = await router.post("/v1/completions", {"prompt": "a"}, **sent)
    assert status == 200
    got = engine.asked[0].headers
    assert (got["Authorization"], got["X-Request-Id"]) == ("Bearer secret", "7")
    assert (got["Content-Type"], got["Accept-Encoding"]) == ("application/json; charset=utf-8", "identity")
    assert got["Host"] == engine.url.removeprefix("http://")
    assert not {"X-Mine", "TE", "Keep-Alive", "Expect"} & set(got)


async def test_a_body_of_no_type_is_sent_on_as_json(stage: Stage) -> None:
    engine = await stage.engine()
    router = await stage.router(engine)
    async with router.session.post(
        f"{router.url}/v1/completions", data=b'{"prompt":"a"}', skip_auto_headers=["Content-Type"]
    ) as response:
        assert response.status == 200
    assert engine.asked[0].headers["Content-Type"] == "application/json"


async def test_a_body_in_chunks_or_compressed_arrives_whole(stage: Stage) -> None:
    engine = await stage.engine()
    router = await stage.router(engine, send_token_ids="never")
    async with router.session.post(
        f"{router.url}/v1/completions", data=json.dumps({"prompt": "abc"}).encode(), compress="gzip"
    ) as response:
        assert response.status == 200
    assert engine.asked[0].body == {"prompt": "abc"}
    assert "Content-Encoding" not in engine.asked[0].headers


async def test_a_body_of_megabytes_arrives_whole(stage: Stage) -> None:
    engine = await stage.engine()
    router = await stage.router(engine)
    tokens = [number % 250 for number in range(800_000)]
    assert (await router.complete(tokens))[0] == 200
    assert engine.asked[0].body["prompt"] == tokens


async def test_the_replica_is_named_only_where_that_is_wanted(stage: Stage) -> None:
    engine = await stage.engine()
    for exposed in (True, False):
        router = await stage.router(engine, expose_replica=exposed)
        for more in ({}, {"stream": True}):
            async with router.session.post(f"{router.url}/v1/completions", json={"prompt": "a", **more}) as response:
                assert response.headers.get("X-KVSteer-Replica") == (engine.url if exposed else None)


async def scripted(engine: FakeEngine, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    """A stream cut at odd places, with counts where they are asked for."""
    asked = (body.get("stream_options") or {}).get("include_usage")
    counts = {"prompt_tokens": 4, "prompt_tokens_details": {"cached_tokens": 0}}
    events = b": ping\n\n" + sse({"choices": [{"text": "Löwe"}]}) + sse({"choices": [{"text": "x"}]})
    events += (sse({"choices": [], "usage": counts}) if asked else b"") + DONE
    return await stream(request, [events[start : start + 7] for start in range(0, len(events), 7)])


@pytest.mark.parametrize("asked", [True, False])
async def test_a_stream_is_what_it_would_be_without_the_router(stage: Stage, asked: bool) -> None:
    """Counts are always asked of the engine; a client that did not ask does not see them."""
    engine = await stage.engine()
    engine.answer = scripted
    router = await stage.router(engine)
    body = {"prompt": [1, 2, 3, 4], "stream": True} | ({"stream_options": {"include_usage": True}} if asked else {})
    _, through = await router.raw("/v1/completions", body)
    async with router.session.post(f"{engine.url}/v1/completions", json=body) as response:
        assert await response.read() == through
    assert (b'"prompt_tokens"' in through) is asked
    assert engine.asked[0].body["stream_options"] == {"include_usage": True}
    assert (await router.replica(engine))["tokens"]["prompt"] == 4


async def test_an_event_is_passed_on_before_the_next_one_exists(stage: Stage) -> None:
    engine, go_on = await stage.engine(), asyncio.Event()

    async def paused(engine: FakeEngine, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(sse({"choices": [{"text": "1"}]}))
        await go_on.wait()
        await response.write(DONE)
        return response

    engine.answer = paused
    router = await stage.router(engine)
    async with router.session.post(f"{router.url}/v1/completions", json={"prompt": "a", "stream": True}) as response:
        first = await in_time(response.content.readuntil(b"\n\n"))
        assert first == sse({"choices": [{"text": "1"}]})
        assert (await router.replica(engine))["requests"]["in_flight"] == 1
        go_on.set()
        assert await response.content.read() == DONE
    await until(lambda: _idle(router), "nothing is in flight")


async def _idle(router: Any) -> bool:
    return await router.in_flight() == 0


@pytest.mark.parametrize("path", ["/generate", "/v1/completions"])
async def test_a_client_that_reads_slowly_slows_the_engine_down(stage: Stage, path: str) -> None:
    """Backpressure: what nobody reads is not piled up in the router."""
    engine, written = await stage.engine(), 0
    block, blocks = sse({"text": "x" * 65_000}), 1000

    async def flood(engine: FakeEngine, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        nonlocal written
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for _ in range(blocks):
            await response.write(block)
            written += len(block)
        return response

    engine.answer = flood
    router = await stage.router(engine)
    body = {"text" if path == "/generate" else "prompt": "a", "stream": True}
    async with router.session.post(router.url + path, json=body) as response:
        await response.content.readexactly(10)
        before = -1
        while before != written:  # the engine stands still once every buffer on the way is full
            before = written
            await asyncio.sleep(0.25)
        assert written < blocks * len(block) / 2
        rest = await response.content.read()
    assert 10 + len(rest) == blocks * len(block)


async def test_an_answer_too_large_to_hold_is_passed_on_as_it_comes(stage: Stage) -> None:
    engine = await stage.engine()
    large = json.dumps({"choices": [{"text": "x" * 9_000_000}]}).encode()

    async def answer(engine: FakeEngine, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        return web.Response(body=large, content_type="application/json")

    engine.answer = answer
    router = await stage.router(engine)
    assert await router.raw("/v1/completions", {"prompt": "a"}) == (200, large)


async def test_a_chosen_rank_travels_in_the_header_or_in_the_body_of_generate(stage: Stage) -> None:
    engine = await stage.engine(FakeEngine(ranks=2))
    router = await stage.router(engine, policy="round_robin")
    for _ in range(2):
        await router.post("/v1/completions", {"prompt": "a"})
        await router.post("/generate", {"text": "a"})
    openai = [asked for asked in engine.asked if asked.path == "/v1/completions"]
    sglang = [asked for asked in engine.asked if asked.path == "/generate"]
    assert [asked.headers.get("X-Data-Parallel-Rank") for asked in openai] == ["0", "0"]
    assert [asked.body.get("routed_dp_rank") for asked in sglang] == [1, 1]
    assert "X-Data-Parallel-Rank" not in sglang[0].headers
    await router.post("/v1/completions", {"prompt": "a"}, **{"X-Data-Parallel-Rank": "1"})
    assert engine.asked[-1].headers.getall("X-Data-Parallel-Rank") == ["1"]


async def test_a_replica_of_one_rank_is_not_told_which(stage: Stage) -> None:
    engine = await stage.engine()
    router = await stage.router(engine)
    await router.post("/v1/completions", {"prompt": "a"})
    await router.post("/generate", {"text": "a"})
    assert "X-Data-Parallel-Rank" not in engine.asked[0].headers
    assert "routed_dp_rank" not in engine.asked[1].body
