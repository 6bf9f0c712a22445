"""Where requests go: by what engines hold, by what is under way, and what the router says of it."""

from __future__ import annotations

import asyncio
from collections import Counter
from random import Random
from typing import Any

import pytest
from aiohttp import web
from fake_engine import DONE, FakeEngine, FakeVllm, sse, stored
from patience import until
from router_stage import RouterClient, Stage

WIDTH = 6


def tokens(count: int, *, seed: int) -> list[int]:
    random = Random(seed)
    return [random.randrange(250) for _ in range(count)]


async def publishing(stage: Stage, count: int, **more: Any) -> list[FakeEngine]:
    engines = []
    for _ in range(count):
        engine = FakeEngine(width=WIDTH, **more)
        engine.publish_on()
        engines.append(await stage.engine(engine))
    return engines


def spread(engines: list[FakeEngine]) -> list[int]:
    return [len(engine.asked) for engine in engines]


async def test_a_prompt_goes_where_most_of_it_is_held(stage: Stage) -> None:
    engines = await publishing(stage, 3)
    router = await stage.router(*engines)
    prompt = tokens(600, seed=1)
    engines[1].publish(stored(prompt[:300], width=WIDTH))
    engines[2].publish(stored(prompt[:540], width=WIDTH))
    expected = {engines[0].url: 0, engines[1].url: 300, engines[2].url: 540}
    await router.until_matched(prompt, expected)
    for _ in range(5):
        assert (await router.complete(prompt))[0] == 200
    assert spread(engines) == [0, 0, 5]


async def test_what_an_engine_always_computes_is_no_hit(stage: Stage) -> None:
    """A prompt that ends with a whole block: an engine computes its last token, so that block cannot be one."""
    (engine,) = await publishing(stage, 1)
    router = await stage.router(engine)
    prompt = tokens(5 * WIDTH, seed=2)
    engine.publish(stored(prompt, width=WIDTH))
    await router.until_matched(prompt, {engine.url: 4 * WIDTH})
    await router.until_matched([*prompt, 1], {engine.url: 5 * WIDTH})


async def test_explain_gives_the_reasons_and_leaves_no_trace(stage: Stage) -> None:
    engines = await publishing(stage, 2)
    router = await stage.router(*engines)
    prompt = tokens(120, seed=3)
    engines[0].publish(stored(prompt[:60], width=WIDTH))
    await router.until_matched(prompt, {engines[0].url: 60, engines[1].url: 0})
    explained = (await router.post("/explain", {"prompt": prompt}))[1]
    assert set(explained) == {"chosen", "lanes"}
    assert explained["chosen"] == {"url": engines[0].url, "dp_rank": 0}
    lane = explained["lanes"][0]
    assert set(lane) == {
        "url",
        "dp_rank",
        "block_size",
        "prompt_tokens",
        "matched_tokens",
        "pending_tokens",
        "tiers",
        "cost",
        "terms",
    }
    assert (lane["block_size"], lane["prompt_tokens"], lane["tiers"]) == (WIDTH, 120, {"GPU": 60})
    assert lane["cost"] == pytest.approx(sum(lane["terms"].values()))
    assert spread(engines) == [0, 0]
    cold = tokens(60, seed=4)
    for _ in range(12):
        told = (await router.post("/explain", {"prompt": cold}))[1]["chosen"]["url"]
        before = spread(engines)
        await router.complete(cold)
        went = [after - earlier for after, earlier in zip(spread(engines), before, strict=True)]
        assert engines[went.index(1)].url == told


async def test_explain_takes_a_body_of_any_routed_endpoint(stage: Stage) -> None:
    (engine,) = await publishing(stage, 1)
    router = await stage.router(engine)
    for body, count in (
        ({"messages": [{"role": "user", "content": "abc"}]}, 7),
        ({"prompt": "abc"}, 4),
        ({"text": "abc"}, 4),
        ({"input_ids": [1, 2]}, 2),
    ):
        status, answer = await router.post("/explain", body)
        assert status == 200
        assert answer["lanes"][0]["prompt_tokens"] == count, body


@pytest.mark.parametrize("streamed", [False, True])
async def test_cold_requests_that_come_together_are_split(stage: Stage, streamed: bool) -> None:
    """L2: nothing answers before all are there."""
    engines = await publishing(stage, 2)
    router = await stage.router(*engines)
    for engine in engines:
        engine.hold.clear()
    asking = [asyncio.create_task(router.complete(tokens(2000, seed=number))) for number in range(10)]
    if streamed:
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
        await until(lambda: _idle(router), "nothing is in flight")
        for engine in engines:
            engine.asked.clear()
        asking = [
            asyncio.create_task(router.raw("/generate", {"input_ids": tokens(2000, seed=number), "stream": True}))
            for number in range(10)
        ]
    await until(lambda: sum(spread(engines)) == 10, "all ten are with engines")
    assert spread(engines) == [5, 5]
    for engine in engines:
        engine.hold.set()
    await asyncio.gather(*asking)


async def _idle(router: RouterClient) -> bool:
    return await router.in_flight() == 0


async def test_a_cold_request_avoids_the_replica_that_is_busy(stage: Stage) -> None:
    """L3: running answers count, and health checks do not."""
    engines = await publishing(stage, 2)
    router = await stage.router(*engines, policy="kv")
    prompt = tokens(3000, seed=1)
    engines[0].publish(stored(prompt, width=WIDTH))
    await router.until_matched(prompt, {engines[0].url: 2994, engines[1].url: 0})
    go_on = asyncio.Event()

    async def slow(engine: FakeEngine, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(sse({"choices": [{"text": "1"}]}))
        await go_on.wait()
        await response.write(DONE)
        return response

    engines[0].answer = slow
    running = [asyncio.create_task(router.raw("/generate", {"input_ids": prompt, "stream": True})) for _ in range(8)]
    await until(lambda: len(engines[0].asked) == 8, "eight run on the first")
    probes = [engine.probes for engine in engines]
    await until(lambda: all(engine.probes > seen for engine, seen in zip(engines, probes, strict=True)), "probes")
    await router.complete(tokens(40, seed=99))
    assert spread(engines) == [8, 1]
    go_on.set()
    await asyncio.gather(*running)


@pytest.mark.parametrize("policy", ["round_robin", "random", "least_loaded", "power_of_two"])
async def test_policies_that_do_not_look_at_hits_still_predict_them(stage: Stage, policy: str) -> None:
    engines = await publishing(stage, 2)
    router = await stage.router(*engines, policy=policy)
    prompt = tokens(61, seed=1)
    for engine in engines:
        engine.cached_tokens = 60
        engine.publish(stored(prompt, width=WIDTH))
    await router.until_matched(prompt, dict.fromkeys((engine.url for engine in engines), 60))
    for _ in range(20):
        await router.complete(prompt)
    views = [await router.replica(engine) for engine in engines]
    assert sum(view["tokens"]["predicted_hit"] for view in views) == 1200
    assert min(spread(engines)) > 0


async def test_an_adapter_and_a_salt_match_only_their_own(stage: Stage) -> None:
    """C11, C12: an engine says under which salt and adapter a block is; so does a request."""
    (engine,) = await publishing(stage, 1)
    engine.models.append({"id": "tuned", "parent": "m"})
    router = await stage.router(engine)
    prompt = tokens(61, seed=1)
    plain = stored(prompt, width=WIDTH)
    engine.publish(plain)
    await router.until_matched(prompt, {engine.url: 60})
    for more in ({"cache_salt": "s"}, {"model": "tuned"}, {"extra_key": "k"}):
        lane = (await router.post("/explain", {"prompt": prompt, **more}))[1]["lanes"][0]
        assert lane["matched_tokens"] == 0, more


async def test_each_rank_of_a_replica_is_a_lane_of_its_own(stage: Stage) -> None:
    """S13: and a request is told the rank that holds its prompt."""
    (engine,) = await publishing(stage, 1, ranks=3)
    router = await stage.router(engine)
    prompt = tokens(61, seed=1)
    engine.publish(stored(prompt, width=WIDTH), rank=2)

    async def seen() -> bool:
        lanes = (await router.post("/explain", {"prompt": prompt}))[1]["lanes"]
        return [lane["matched_tokens"] for lane in lanes] == [0, 0, 60]

    await until(seen, "rank 2 holds the prompt")
    await router.complete(prompt)
    await router.post("/generate", {"input_ids": prompt})
    assert engine.asked[0].headers["X-Data-Parallel-Rank"] == "2"
    assert engine.asked[1].body["routed_dp_rank"] == 2
    pinned = await router.post("/generate", {"input_ids": prompt, "routed_dp_rank": 1})
    assert pinned[0] == 200
    assert engine.asked[2].body["routed_dp_rank"] == 1


async def test_lanes_of_different_widths_are_compared_in_tokens(stage: Stage) -> None:
    """C2, C16."""
    narrow, wide = FakeEngine(width=6), FakeEngine(width=24)
    for engine in (narrow, wide):
        engine.publish_on()
        await stage.engine(engine)
    router = await stage.router(narrow, wide)
    prompt = tokens(121, seed=1)
    narrow.publish(stored(prompt[:66], width=6))
    wide.publish(stored(prompt[:100], width=24))
    await router.until_matched(prompt, {narrow.url: 66, wide.url: 96})
    await router.complete(prompt)
    assert spread([narrow, wide]) == [0, 1]


async def test_a_vllm_replica_is_found_out_by_its_url_alone(stage: Stage) -> None:
    engine = FakeVllm(width=WIDTH)
    engine.publish_on()
    await stage.engine(engine)
    router = await stage.router(engine, tokenizer="byte")
    prompt = tokens(61, seed=1)
    engine.publish(stored(prompt, width=WIDTH))
    await router.until_matched(prompt, {engine.url: 60})
    view = await router.replica(engine)
    lane = view["lanes"][0]
    assert (view["engine"], view["state"]) == ("vllm", "healthy")
    assert (lane["advertised_block_size"], lane["emitted_block_size"]) == (None, WIDTH)
    assert view["faults"] == []
    engine.health = 503
    await router.until_state(engine, "unhealthy")


async def test_a_batch_is_routed_by_its_first_prompt(stage: Stage) -> None:
    engines = await publishing(stage, 2)
    router = await stage.router(*engines)
    prompt = tokens(600, seed=1)
    engines[1].publish(stored(prompt, width=WIDTH))
    await router.until_matched(prompt, {engines[0].url: 0, engines[1].url: 594})
    await router.post("/v1/completions", {"prompt": [prompt, tokens(10, seed=2)]})
    assert spread(engines) == [0, 1]


async def test_prompts_without_token_ids_are_routed_all_the_same(stage: Stage) -> None:
    engines = await publishing(stage, 2)
    router = await stage.router(*engines, tokenizer="off")
    counts: Counter[str] = Counter()
    for _ in range(12):
        assert (await router.post("/v1/completions", {"prompt": "abc" * 50}))[0] == 200
        answer = (await router.post("/explain", {"prompt": "abc" * 50}))[1]
        counts[answer["chosen"]["url"]] += 1
        assert answer["lanes"][0]["matched_tokens"] == 0
    assert min(spread(engines)) > 0
    assert len(counts) == 2
