"""Receipts: why a request went where it went, and what came of it."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from aiohttp import web
from fake_engine import FakeEngine, stored
from patience import until
from router_stage import RouterClient, Stage

PROMPT = list(range(40))
WIDTH = 6


async def ask(router: RouterClient, body: Any, path: str = "/v1/completions", **headers: str) -> Any:
    """Send a request, read its answer to the end, and get its receipt."""
    async with router.session.post(router.url + path, json=body, headers=headers) as response:
        await response.read()
        return await router.get(f"/requests/{response.headers['x-kvsteer-request-id']}")


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_receipt_says_why_and_what_came_of_it(stage: Stage, streamed: bool) -> None:
    holder, other = FakeEngine(), await stage.engine()
    holder.publish_on()
    await stage.engine(holder)
    router = await stage.router(holder, other)
    holder.publish(stored(PROMPT, width=WIDTH))
    await router.until_matched(PROMPT, {holder.url: 36, other.url: 0})
    holder.cached_tokens = 30
    before = time.time()
    body = {"model": "m", "prompt": PROMPT, "stream": streamed}
    receipt = await ask(router, body, **{"X-Request-Id": "mine"})
    assert (receipt["client_request_id"], receipt["route"], receipt["model"]) == ("mine", "/v1/completions", "m")
    assert (receipt["status"], receipt["stream"], receipt["retries"], receipt["error"]) == (200, streamed, 0, None)
    assert (receipt["prompt_tokens"], receipt["predicted"], receipt["reported"]) == (40, 36, 30)
    assert receipt["chosen"] == {"url": holder.url, "dp_rank": 0}
    lanes = {lane["url"]: lane for lane in receipt["lanes"]}
    assert {url: lane["matched_tokens"] for url, lane in lanes.items()} == {holder.url: 36, other.url: 0}
    assert all(lane["cost"] == pytest.approx(sum(lane["terms"].values())) for lane in lanes.values())
    times = receipt["times"]
    assert before <= times["received"] <= times["chosen"] <= times["first_byte"] <= times["end"] <= time.time()


async def test_a_second_try_is_on_the_receipt_with_its_reason(stage: Stage) -> None:
    engines = await stage.engines(2)
    router = await stage.router(*engines, policy="round_robin")

    async def full(engine: FakeEngine, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        return web.json_response({}, status=503)

    engines[0].answer = full
    receipts = [await ask(router, {"prompt": [number]}) for number in range(2)]
    receipt = max(receipts, key=lambda receipt: receipt["retries"])
    assert (receipt["status"], receipt["retries"]) == (200, 1)
    assert [attempt["chosen"]["url"] for attempt in receipt["attempts"]] == [engines[0].url, engines[1].url]
    assert [attempt["failure"] for attempt in receipt["attempts"]] == [f"{engines[0].url} answered 503", None]
    assert receipt["chosen"]["url"] == engines[1].url


async def test_a_refusal_has_a_receipt_too(stage: Stage) -> None:
    router = await stage.router(await stage.engine())
    receipt = await ask(router, {"prompt": "a", "model": "nobody's"})
    assert (receipt["status"], receipt["code"], receipt["chosen"]) == (404, "model_not_found", None)
    assert "nobody's" in receipt["error"]
    assert receipt["times"]["chosen"] is None


async def test_a_running_request_has_a_receipt_and_one_that_was_left_says_so(stage: Stage) -> None:
    engine = await stage.engine()

    async def begins(engine: FakeEngine, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b"data: {}\n\n")
        await asyncio.Event().wait()
        return response

    engine.answer = begins
    router = await stage.router(engine)
    async with router.session.post(f"{router.url}/generate", json={"text": "a", "stream": True}) as response:
        path = f"/requests/{response.headers['x-kvsteer-request-id']}"
        running = await router.get(path)
        assert (running["status"], running["times"]["end"]) == (None, None)
        assert running["times"]["first_byte"] is not None
        response.close()

    async def left() -> bool:
        return bool((await router.get(path))["status"] == 499)

    await until(left, "the receipt says that the client left")


async def test_the_oldest_receipts_are_forgotten(stage: Stage) -> None:
    router = await stage.router(await stage.engine(), receipts=3)
    names = [(await ask(router, {"prompt": "a"}))["id"] for _ in range(5)]
    assert len(set(names)) == 5
    assert [await router.status(f"/requests/{name}") for name in names] == [404, 404, 200, 200, 200]
    async with router.session.get(f"{router.url}/requests/{names[0]}") as response:
        assert (await response.json())["error"]["code"] == "unknown_request"


@pytest.mark.parametrize("expose", [False, True])
async def test_the_replica_is_named_only_where_that_is_wanted(stage: Stage, expose: bool) -> None:
    engine = await stage.engine()
    router = await stage.router(engine, expose_replica=expose)
    async with router.session.post(f"{router.url}/v1/completions", json={"prompt": "a"}) as response:
        assert response.headers.get("x-kvsteer-replica") == (engine.url if expose else None)


async def test_a_clients_own_id_travels_on_and_comes_back(stage: Stage) -> None:
    engine = await stage.engine()
    router = await stage.router(engine)
    headers = {"X-Request-Id": "mine"}
    async with router.session.post(f"{router.url}/v1/completions", json={"prompt": "a"}, headers=headers) as response:
        assert response.headers["X-Request-Id"] == "mine"
    assert engine.asked[0].headers["X-Request-Id"] == "mine"
