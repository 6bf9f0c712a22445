"""What the router says of itself: replicas, faults, index, models, metrics."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from fake_engine import FakeEngine, FakeVllm, free_port, stored
from patience import until
from router_stage import RouterClient, Stage

from contract.events import AllBlocksCleared

WIDTH = 6
PROMPT = Random(1).choices(range(250), k=61)


async def publishing(stage: Stage, engine: FakeEngine | None = None, **more: Any) -> FakeEngine:
    engine = engine or FakeEngine(width=WIDTH)
    engine.publish_on(**more)
    return await stage.engine(engine)


async def fault_codes(router: RouterClient, engine: FakeEngine) -> list[str]:
    return [fault["code"] for fault in (await router.replica(engine))["faults"]]


async def until_fault(router: RouterClient, engine: FakeEngine, code: str) -> str:
    async def there() -> bool:
        return code in await fault_codes(router, engine)

    await until(there, f"{code} is seen")
    faults = (await router.replica(engine))["faults"]
    detail: str = next(fault["detail"] for fault in faults if fault["code"] == code)
    return detail


async def test_replicas_have_exactly_the_fields_that_were_promised(stage: Stage) -> None:
    engine = await publishing(stage)
    router = await stage.router(engine)
    (view,) = (await router.get("/replicas"))["replicas"]
    assert set(view) == {
        "url",
        "state",
        "engine",
        "model",
        "trouble",
        "hit_rate",
        "tokens",
        "requests",
        "lanes",
        "faults",
    }
    assert set(view["hit_rate"]) == {"predicted", "reported"}
    assert set(view["tokens"]) == {"prompt", "predicted_hit", "reported_hit"}
    assert set(view["requests"]) == {"routed", "in_flight"}
    assert set(view["lanes"][0]) == {
        "dp_rank",
        "endpoint",
        "stream",
        "reason",
        "last_seq",
        "known_from",
        "gaps",
        "lost",
        "replayed",
        "advertised_block_size",
        "emitted_block_size",
        "blocks",
        "event_age",
        "in_flight",
        "queued_tokens",
        "window",
    }
    assert (view["engine"], view["model"], view["state"]) == ("sglang", "m", "healthy")
    assert view["hit_rate"] == {"predicted": None, "reported": None}


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("path", ["/v1/completions", "/generate"])
async def test_hit_rates_are_tokens_over_tokens(stage: Stage, path: str, streamed: bool) -> None:
    engine = await publishing(stage)
    router = await stage.router(engine)
    engine.publish(stored(PROMPT, width=WIDTH))
    await router.until_matched(PROMPT, {engine.url: 60})
    field = "input_ids" if path == "/generate" else "prompt"
    for prompt, cached in ((PROMPT, 54), ([1, 2, 3], 0)):
        engine.cached_tokens = cached
        await router.raw(path, {field: prompt, "stream": streamed})
    view = await router.replica(engine)
    assert view["tokens"] == {"prompt": 64, "predicted_hit": 60, "reported_hit": 54}
    assert view["hit_rate"] == {"predicted": 60 / 64, "reported": 54 / 64}
    assert view["requests"] == {"routed": 2, "in_flight": 0}


async def test_the_index_of_a_lane_can_be_laid_beside_the_engines_truth(stage: Stage) -> None:
    engine = await publishing(stage)
    router = await stage.router(engine)
    event = stored(PROMPT[:18], width=WIDTH)
    engine.publish(event)
    await router.until_matched(PROMPT, {engine.url: 18})
    lane = await router.get("/index", url=engine.url, dp_rank=0)
    assert set(lane) == {"last_seq", "gaps", "lost", "rejected_events", "blocks"}
    assert {block["hash"] for block in lane["blocks"]} == {str(name) for name in event.block_hashes}
    assert lane["blocks"][0] | {"hash": ""} == {"hash": "", "tier": "GPU", "group": None, "copies": 1}
    async with router.session.get(f"{router.url}/index", params={"url": "http://other", "dp_rank": "0"}) as response:
        assert response.status == 404
    engine.publish(AllBlocksCleared())
    await router.until_matched(PROMPT, {engine.url: 0})


async def test_a_width_that_was_not_advertised_is_followed_and_named(stage: Stage) -> None:
    """C1: SGLang 0.5.17 advertised its physical page."""
    engine = await publishing(stage, FakeEngine(width=64), advertised_width=16)
    router = await stage.router(engine)
    prompt = Random(2).choices(range(250), k=300)
    engine.publish(stored(prompt, width=64))
    await router.until_matched(prompt, {engine.url: 256})
    detail = await until_fault(router, engine, "width-mismatch")
    assert "16" in detail
    assert "64" in detail
    lane = (await router.replica(engine))["lanes"][0]
    assert (lane["advertised_block_size"], lane["emitted_block_size"]) == (16, 64)


async def test_a_topic_is_taken_from_the_descriptor(stage: Stage) -> None:
    """C4."""
    engine = await publishing(stage, topic="kv@10.0.0.1@m")
    router = await stage.router(engine)
    engine.publish(stored(PROMPT, width=WIDTH))
    await router.until_matched(PROMPT, {engine.url: 60})


async def test_an_engine_without_events_is_used_and_named(stage: Stage) -> None:
    """C5: events off."""
    engine = await stage.engine()
    router = await stage.router(engine)
    for number in range(16):
        await router.complete([number, *PROMPT])
    assert "null" in await until_fault(router, engine, "events-silent")
    assert (await router.replica(engine))["lanes"][0]["stream"] == "off"


async def test_an_event_port_where_nobody_speaks_is_named(stage: Stage) -> None:
    """C5: a wrong port. It does not keep the router from being ready for ever."""
    engine = FakeEngine(width=WIDTH)
    engine.publish_on()
    engine.server_info["kv_events"]["endpoint_port_base"] = free_port()
    del engine.server_info["kv_events"]["replay_endpoint_port_base"]
    await stage.engine(engine)
    router = await stage.router(engine, ready=False)
    await router.until_state(engine, "healthy")
    for number in range(16):
        await router.complete([number, *PROMPT])
    assert "tcp://127.0.0.1" in await until_fault(router, engine, "events-silent")


async def test_hits_that_are_promised_and_not_found_are_named(stage: Stage) -> None:
    engine = await publishing(stage)
    router = await stage.router(engine)
    engine.publish(stored(PROMPT, width=WIDTH))
    await router.until_matched(PROMPT, {engine.url: 60})
    for _ in range(5):
        await router.complete(PROMPT)
    assert "300" in await until_fault(router, engine, "hits-not-realised")


@pytest.mark.parametrize(("kind", "flag"), [(FakeEngine, "--enable-cache-report"), (FakeVllm, "prompt-tokens-details")])
async def test_an_engine_that_reports_nothing_is_told_how(stage: Stage, kind: type[FakeEngine], flag: str) -> None:
    engine = await publishing(stage, kind(width=WIDTH))
    engine.cached_tokens = None
    router = await stage.router(engine)
    engine.publish(stored(PROMPT, width=WIDTH))
    await router.until_matched(PROMPT, {engine.url: 60})
    for _ in range(5):
        await router.complete(PROMPT)
    assert flag in await until_fault(router, engine, "reports-missing")
    assert (await router.replica(engine))["hit_rate"]["reported"] is None


async def test_another_tokenizer_than_the_engines_is_named(stage: Stage) -> None:
    """C6, by the length of prompts: here the engine counts no BOS."""
    engine = await publishing(stage)
    engine.prompt_tokens = lambda body: len(body["prompt"])  # type: ignore[method-assign]
    router = await stage.router(engine, tokenizer="byte")
    for number in range(6):
        await router.post("/v1/completions", {"prompt": f"some text {number}"})
    await until_fault(router, engine, "tokenization-mismatch")


async def test_faults_are_a_metric_too(stage: Stage) -> None:
    engine = await publishing(stage, FakeEngine(width=64), advertised_width=16)
    router = await stage.router(engine)
    engine.publish(stored(PROMPT * 3, width=64))
    await until_fault(router, engine, "width-mismatch")
    async with router.session.get(f"{router.url}/metrics") as response:
        text = await response.text()
        assert response.headers["Content-Type"].startswith("text/plain")
    assert f'kvsteer_replica_faults{{code="width-mismatch",replica="{engine.url}"}} 1.0' in text
    assert f'kvsteer_replica_state{{replica="{engine.url}",state="healthy"}} 1.0' in text
    assert f'kvsteer_lane_blocks{{dp_rank="0",replica="{engine.url}",tier="GPU"}} 2.0' in text
    assert f'kvsteer_lane_width{{dp_rank="0",replica="{engine.url}"}} 64.0' in text


async def test_models_of_all_healthy_replicas_are_listed_once(stage: Stage) -> None:
    first, second = FakeEngine(model="a"), FakeEngine(model="b")
    second.models.append({"id": "a", "object": "model"})
    for engine in (first, second):
        await stage.engine(engine)
    router = await stage.router(first, second)
    listed = await router.get("/v1/models")
    assert listed["object"] == "list"
    assert [model["id"] for model in listed["data"]] == ["a", "b"]


async def test_tokenize_is_answered_by_a_replica_that_serves_the_model(stage: Stage) -> None:
    first, second = FakeEngine(model="a"), FakeEngine(model="b")
    for engine in (first, second):
        await stage.engine(engine)
    router = await stage.router(first, second)
    for engine in (first, second):
        status, answer = await router.post("/tokenize", {"model": engine.model, "prompt": "x"})
        assert (status, answer["asked"]) == (200, engine.url)
    assert (await router.post("/tokenize", {"model": "c", "prompt": "x"}))[0] == 404
    assert (await router.post("/tokenize", b"["))[0] == 400


async def test_a_restart_with_another_width_and_other_ports_is_followed(stage: Stage) -> None:
    """C3: no operator has to do anything, and what the old engine held is gone."""
    engine = await publishing(stage)
    router = await stage.router(engine)
    engine.publish(stored(PROMPT, width=WIDTH))
    await router.until_matched(PROMPT, {engine.url: 60})
    await engine.stop()
    engine.width = 20
    engine.publish_on(topic="other")
    await engine.start()
    engine.publish(stored(PROMPT[:20], width=20))
    await router.until_matched(PROMPT, {engine.url: 20})
    lane = (await router.replica(engine))["lanes"][0]
    assert (lane["advertised_block_size"], lane["emitted_block_size"], lane["last_seq"]) == (20, 20, 0)
    assert await fault_codes(router, engine) == []


async def test_a_descriptor_that_changes_on_a_running_replica_is_followed(stage: Stage) -> None:
    engine = await publishing(stage)
    router = await stage.router(engine)
    engine.publish(stored(PROMPT, width=WIDTH))
    await router.until_matched(PROMPT, {engine.url: 60})
    old = engine.publishers
    engine.ranks = 2
    engine.publish_on()
    for publisher in old:
        publisher.close()
    engine.publish(stored(PROMPT[:30], width=WIDTH), rank=1)

    async def followed() -> bool:
        lanes = (await router.post("/explain", {"prompt": PROMPT}))[1]["lanes"]
        return [lane["matched_tokens"] for lane in lanes] == [0, 30]

    await until(followed, "both ranks are followed")
    engine.ranks = 1
    engine.server_info["kv_events"]["dp_size"] = 1

    async def one_lane() -> bool:
        return len((await router.replica(engine))["lanes"]) == 1

    await until(one_lane, "the second rank is gone")


async def test_a_replica_that_is_gone_holds_nothing(stage: Stage) -> None:
    """S17: nor does it when it comes back empty."""
    engine = await publishing(stage)
    router = await stage.router(engine)
    engine.publish(stored(PROMPT, width=WIDTH))
    await router.until_matched(PROMPT, {engine.url: 60})
    await engine.stop()
    await router.until_state(engine, "gone")
    assert (await router.replica(engine))["lanes"][0]["blocks"] == {"GPU": 0}
    engine.publish_on()
    await engine.start()
    await router.until_state(engine, "healthy")
    await router.until_matched(PROMPT, {engine.url: 0})


async def test_a_policy_that_needs_no_events_does_not_miss_them(stage: Stage) -> None:
    engine = await stage.engine()
    router = await stage.router(engine, policy="approx")
    for number in range(20):
        await router.complete([number, *PROMPT])
    assert "events-silent" not in await fault_codes(router, engine)


async def test_a_replica_that_left_takes_its_faults_with_it(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    engine = await publishing(stage, FakeEngine(width=64), advertised_width=16)
    engine.publish(stored(PROMPT * 3, width=64))
    router = await stage.router(engine, await stage.engine())
    await until_fault(router, engine, "width-mismatch")
    async with router.session.delete(f"{router.url}/replicas", params={"url": engine.url}) as response:
        assert response.status == 200
    async with router.session.post(f"{router.url}/replicas", json={"url": engine.url}) as response:
        assert response.status == 201
    await until_fault(router, engine, "width-mismatch")
    assert sum("width-mismatch" in record.getMessage() for record in caplog.records) == 2
