"""The contract rows of the fault list: what makes hits silently zero elsewhere, through real sockets."""

from __future__ import annotations

import itertools
import logging
from random import Random
from typing import Any

import msgspec
import pytest
from aiohttp import web
from command import kvsteer_router
from event_source import EventSource
from fake_engine import FakeEngine, FakeVllm, answer_at_once, free_port, stored
from patience import until
from router_stage import RouterClient, Stage

from contract.byte_tokenizer import conversation_ids, text_ids
from contract.geometry import block_width
from router.fleet.override import Override

WIDTH = 6
PROMPT = Random(1).choices(range(250), k=61)
LONG = Random(2).choices(range(250), k=300)


async def publishing(stage: Stage, engine: FakeEngine | None = None, **more: Any) -> FakeEngine:
    engine = engine or FakeEngine(width=WIDTH)
    engine.publish_on(**more)
    return await stage.engine(engine)


# Payloads as engines of several versions encode them.


def batch(*events: Any) -> bytes:
    return msgspec.msgpack.encode([1.0, list(events), 0])


def stored_map(hashes: list[Any], tokens: list[Any], *, parent: Any = None, **more: Any) -> dict[str, Any]:
    size = more.pop("block_size", WIDTH)
    return {
        "type": "BlockStored",
        "block_hashes": hashes,
        "parent_block_hash": parent,
        "token_ids": tokens,
        "block_size": size,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
    } | more


def stored_array(hashes: list[Any], tokens: list[int], *more: Any) -> list[Any]:
    return ["BlockStored", hashes, None, tokens, WIDTH, None, "GPU", *more]


def removed_map(hashes: list[Any], **more: Any) -> dict[str, Any]:
    return {"type": "BlockRemoved", "block_hashes": hashes, "medium": "GPU"} | more


async def wired(stage: Stage, *, width: int = WIDTH) -> tuple[RouterClient, FakeEngine, EventSource]:
    """A router in front of an engine whose event bytes the test writes."""
    engine = FakeEngine(width=width)
    source = await stage.wire(engine)
    return await stage.router(engine), engine, source


@pytest.mark.fault("C1")
async def test_events_wider_than_the_descriptor_are_followed_and_named(stage: Stage) -> None:
    """A descriptor says 16 and events carry 64: hits are found at 64, the fault names both, `check` exits with 1."""
    engine = await publishing(stage, FakeEngine(width=64), advertised_width=16)
    router = await stage.router(engine)
    engine.publish(stored(LONG, width=64))
    await router.until_matched(LONG, {engine.url: 256})
    fault = await router.until_fault(engine, "width-mismatch")
    assert "16" in fault["detail"]
    assert "64" in fault["detail"]
    assert fault["evidence"] == {"advertised": 16, "emitted": [64], "hashed_at": 64}
    assert fault["first_seen"] <= fault["last_seen"]
    assert fault["advice"]
    ended = await kvsteer_router("check", "--seconds", "2", engine.url)
    assert ended.status == 1
    assert "width-mismatch" in ended.out


@pytest.mark.fault("C2")
async def test_widths_may_differ_between_replicas_of_one_model(stage: Stage) -> None:
    """Two replicas of one model with widths 16 and 64: both score, in tokens."""
    narrow, wide = [await publishing(stage, FakeEngine(width=width)) for width in (16, 64)]
    router = await stage.router(narrow, wide)
    narrow.publish(stored(LONG[:100], width=16))
    wide.publish(stored(LONG[:200], width=64))
    await router.until_matched(LONG, {narrow.url: 96, wide.url: 192})


@pytest.mark.fault("C3")
async def test_an_engine_that_comes_back_with_another_width_is_taken_as_it_is(stage: Stage) -> None:
    """An engine restarts with another width: its lane is cleared and the new width taken, and nobody has to act."""
    engine = await publishing(stage)
    router = await stage.router(engine)
    engine.publish(stored(PROMPT, width=WIDTH))
    await router.until_matched(PROMPT, {engine.url: 60})
    await engine.stop()
    engine.width = 20
    engine.publish_on()
    await engine.start()
    engine.publish(stored(PROMPT[:40], width=20))
    await router.until_matched(PROMPT, {engine.url: 40})
    await router.until_no_fault(engine)


@pytest.mark.fault("C4")
async def test_a_topic_is_taken_from_the_descriptor(stage: Stage) -> None:
    """The engine has a topic of which the router was not told: the descriptor names it."""
    engine = await publishing(stage, topic="kv@10.0.0.1@m")
    router = await stage.router(engine)
    engine.publish(stored(PROMPT, width=WIDTH))
    await router.until_matched(PROMPT, {engine.url: 60})


@pytest.mark.fault("C4")
async def test_without_a_descriptor_every_topic_is_taken(stage: Stage) -> None:
    """An endpoint without a descriptor, and a topic nobody named: all topics are taken."""
    engine = FakeEngine(width=WIDTH)
    engine.publish_on(topic="anything")
    engine.server_info["kv_events"] = None
    publisher = engine.publishers[0]
    override = Override(url=engine.url, endpoint=publisher.endpoint, replay_endpoint=publisher.replay_endpoint)
    await stage.engine(engine)
    router = await stage.router(engine, overrides={engine.url: override})
    engine.publish(stored(PROMPT, width=WIDTH))
    await router.until_matched(PROMPT, {engine.url: 60})


@pytest.mark.fault("C5")
@pytest.mark.parametrize("wrong_port", [False, True])
async def test_a_lane_without_events_is_named_while_requests_flow(
    stage: Stage, caplog: pytest.LogCaptureFixture, wrong_port: bool
) -> None:
    """Events are off, or come from another port, while requests flow: a warning, once, and a fault in /replicas."""
    engine = FakeEngine(width=WIDTH)
    if wrong_port:
        engine.publish_on()
        engine.server_info["kv_events"]["endpoint_port_base"] = free_port()
        del engine.server_info["kv_events"]["replay_endpoint_port_base"]
    await stage.engine(engine)
    router = await stage.router(engine, ready=False)
    await router.until_state(engine, "healthy")
    for number in range(20):
        await router.complete([number, *PROMPT])
    fault = await router.until_fault(engine, "events-silent")
    assert "no events from this lane" in fault["detail"]
    assert fault["evidence"]["requests"] >= 16
    logged = [record for record in caplog.records if "events-silent" in record.getMessage()]
    assert [record.levelno for record in logged] == [logging.WARNING]


BOS_OF_THE_ENGINE = 251


@pytest.mark.fault("C6")
@pytest.mark.parametrize("engine_adds", [0, 2])
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
async def test_prompts_tokenized_otherwise_than_on_the_engine_are_named(
    stage: Stage, path: str, engine_adds: int
) -> None:
    """The engine's template or BOS is another than the router's: the fault shows the first token that differs."""
    seen: set[tuple[int, ...]] = set()

    def engine_ids(body: dict[str, Any]) -> list[int]:
        ids = conversation_ids(body["messages"]) if "messages" in body else text_ids(body["prompt"])
        return [BOS_OF_THE_ENGINE] * (1 + engine_adds) + ids[1:]

    async def answer(engine: FakeEngine, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        ids = tuple(engine_ids(body))
        engine.cached_tokens = len(ids) // WIDTH * WIDTH if ids in seen else 0
        if ids not in seen:
            seen.add(ids)
            engine.publish(stored(ids, width=WIDTH))
        return await answer_at_once(engine, request, body)

    engine = await publishing(stage)
    engine.answer = answer
    engine.prompt_tokens = lambda body: len(engine_ids(body))  # type: ignore[method-assign]
    router = await stage.router(engine, tokenizer="byte")
    for number in range(6):
        text = f"{number} is the number of this question"
        body = {"prompt": text} if path == "/v1/completions" else {"messages": [{"role": "user", "content": text}]}
        for _ in range(2):
            assert (await router.post(path, body))[0] == 200
    fault = await router.until_fault(engine, "tokenization-mismatch")
    first = text_ids("x")[0] if path == "/v1/completions" else conversation_ids([{"role": "user", "content": "x"}])[0]
    evidence = fault["evidence"]
    assert (evidence["first_difference"], evidence["token_here"], evidence["token_there"]) == (
        0,
        first,
        BOS_OF_THE_ENGINE,
    )
    assert (await router.replica(engine))["lanes"][0]["window"]["difference"] < 0


@pytest.mark.fault("C7")
@pytest.mark.parametrize(
    "event",
    [
        stored_array([1], PROMPT[:WIDTH]),
        stored_array([1], PROMPT[:WIDTH], None, None, 0, "full_attention", None),
        stored_array([1], PROMPT[:WIDTH], {"session_id": "s"}),
        stored_map([1], PROMPT[:WIDTH]),
    ],
    ids=["array", "long array", "array with a map at index 7", "map"],
)
async def test_every_encoding_is_read(stage: Stage, event: Any) -> None:
    """Events as arrays, as maps, and as arrays with SGLang's map at index 7: all are decoded."""
    router, engine, source = await wired(stage)
    await source.publish_payload(batch(event))
    await router.until_matched(PROMPT, {engine.url: WIDTH})


@pytest.mark.fault("C8")
@pytest.mark.parametrize(
    "event",
    [
        stored_map([1], PROMPT[:WIDTH], colour="red", shape=[1, {"a": 2}]),
        [*stored_array([1], PROMPT[:WIDTH], None, None, 0, None, None), "tail", {"more": 1}],
        {key: value for key, value in stored_map([1], PROMPT[:WIDTH]).items() if key not in ("medium", "lora_name")},
        ["BlockStored", [1], None, PROMPT[:WIDTH], WIDTH],
    ],
    ids=["unknown key", "longer array", "shorter map", "shorter array"],
)
async def test_fields_more_or_less_cost_nothing(stage: Stage, event: Any) -> None:
    """An unknown map key, an extra array tail, a missing optional field: accepted, with the rest of the batch."""
    router, engine, source = await wired(stage)
    rest = stored_map([2], PROMPT[WIDTH : 2 * WIDTH], parent=1)
    await source.publish_payload(msgspec.msgpack.encode([1.0, [event, rest], 0, "a later version's item"]))
    await router.until_matched(PROMPT, {engine.url: 2 * WIDTH})


@pytest.mark.fault("C9")
async def test_one_bad_event_costs_itself_only(stage: Stage) -> None:
    """One undecodable event inside a good batch: it is counted and skipped, the others apply."""
    router, engine, source = await wired(stage)
    first, second = stored_map([1], PROMPT[:WIDTH]), stored_map([2], PROMPT[WIDTH : 2 * WIDTH], parent=1)
    await source.publish_payload(batch(first, {"type": "BlockStored", "block_hashes": "?"}, ["Unheard"], second))
    await router.until_matched(PROMPT, {engine.url: 2 * WIDTH})
    assert (await router.get("/index", url=engine.url, dp_rank=0))["rejected_events"] == 2


@pytest.mark.fault("C10")
@pytest.mark.parametrize(("stored_as", "removed_as"), [(b"\x01" * 32, b"\x01" * 32), (-5, 2**64 - 5), (2**64 - 5, -5)])
async def test_a_hash_is_one_identity_however_it_is_sent(stage: Stage, stored_as: Any, removed_as: Any) -> None:
    """Hashes of 32 bytes, and the same 64 bits signed in one event and unsigned in another: one identity."""
    router, engine, source = await wired(stage)
    await source.publish_payload(batch(stored_map([stored_as], PROMPT[:WIDTH])))
    await router.until_matched(PROMPT, {engine.url: WIDTH})
    await source.publish_payload(batch(removed_map([removed_as])))
    await router.until_matched(PROMPT, {engine.url: 0})


@pytest.mark.fault("C11")
@pytest.mark.parametrize(
    "event",
    [
        stored_map([1], PROMPT[:WIDTH], extra_keys=[["tenant"]], group_idx=0),
        stored_map([1], PROMPT[:WIDTH], cache_salt="tenant"),
        stored_array([1], PROMPT[:WIDTH], {"cache_salt": "tenant"}),
    ],
    ids=["vLLM", "SGLang", "SGLang's map at index 7"],
)
async def test_salted_prompts_hit_salted_blocks_only(stage: Stage, event: Any) -> None:
    """Salted events of vLLM and SGLang: prompts with that salt hit them, plain ones and other salts do not."""
    router, engine, source = await wired(stage)
    await source.publish_payload(batch(event))
    await router.until_matched(PROMPT, {engine.url: WIDTH}, cache_salt="tenant")
    assert await router.matched(PROMPT) == {engine.url: 0}
    assert await router.matched(PROMPT, cache_salt="other") == {engine.url: 0}
    await source.publish_payload(batch(stored_map([2], PROMPT[: 2 * WIDTH][:WIDTH])))
    await router.until_matched(PROMPT, {engine.url: WIDTH})
    assert await router.matched(PROMPT, cache_salt="other") == {engine.url: 0}


@pytest.mark.fault("C11")
async def test_an_engine_whose_events_hide_the_salt_is_named(stage: Stage) -> None:
    """Salted prompts hit on the engine while its events name no salt: the fault says so, plain prompts stay trusted."""
    engine = await publishing(stage)
    router = await stage.router(engine)
    engine.publish(stored(PROMPT, width=WIDTH))
    await router.until_matched(PROMPT, {engine.url: 60})
    engine.cached_tokens = 60
    for _ in range(6):
        await router.complete(PROMPT)
        await router.complete(PROMPT, cache_salt="tenant")
    fault = await router.until_fault(engine, "salt-or-adapter-mismatch")
    assert fault["evidence"] == {"requests": 6, "predicted": 0, "reported": 360, "indexed_without_namespace": 6}


@pytest.mark.fault("C12")
async def test_adapters_are_isolated_and_an_unnamed_one_is_never_the_base_model(stage: Stage) -> None:
    """Blocks of an adapter by name, and by id only: each is its own; an id without a name is not the base model's."""
    engine = FakeEngine(width=WIDTH)
    engine.models.append({"id": "style", "object": "model", "parent": "m"})
    source = await stage.wire(engine)
    router = await stage.router(engine)
    named, numbered = PROMPT[:WIDTH], PROMPT[20 : 20 + WIDTH]
    await source.publish_payload(
        batch(stored_map([1], named, lora_id=1, lora_name="style"), stored_map([2], numbered, lora_id=2))
    )
    await router.until_matched(PROMPT, {engine.url: WIDTH}, model="style")
    assert await router.matched(PROMPT) == {engine.url: 0}
    for more in ({}, {"model": "style"}, {"model": "m"}):
        assert await router.matched([*numbered, 1], **more) == {engine.url: 0}, more


@pytest.mark.fault("C13")
async def test_a_text_prompt_does_not_hit_a_picture(stage: Stage) -> None:
    """A block with multimodal extra keys, and a text prompt of the same ids: no hit."""
    router, engine, source = await wired(stage)
    picture = stored_map([1, 2], PROMPT[: 2 * WIDTH], extra_keys=[None, [["picture", 3]]], group_idx=0)
    await source.publish_payload(batch(picture))
    await router.until_matched(PROMPT, {engine.url: WIDTH})


@pytest.mark.fault("C14")
async def test_only_full_attention_decides_in_a_hybrid(stage: Stage) -> None:
    """Sliding-window and Mamba events beside full attention, sharing hashes: only full-attention blocks decide."""
    router, engine, source = await wired(stage)
    full = stored_map([1, 2], PROMPT[:12], group_idx=0, kv_cache_spec_kind="full_attention")
    window = stored_map(
        [2], PROMPT[:12], group_idx=1, kv_cache_spec_kind="sliding_window", kv_cache_spec_sliding_window=6
    )
    mamba = stored_map([9], PROMPT[:48], group_idx=2, block_size=24, kv_cache_spec_kind="mamba")
    await source.publish_payload(batch(full, window, mamba))
    await router.until_matched(PROMPT, {engine.url: 12})
    await source.publish_payload(batch(removed_map([2], group_idx=1), removed_map([9], group_idx=2)))
    await source.publish_payload(batch(stored_map([3], PROMPT[12:18], parent=2, group_idx=0)))
    await router.until_matched(PROMPT, {engine.url: 18})
    await source.publish_payload(batch(removed_map([2], group_idx=0)))
    await router.until_matched(PROMPT, {engine.url: 6})


@pytest.mark.fault("C15")
async def test_pairs_are_indexed_as_pairs_and_nonsense_is_counted(stage: Stage) -> None:
    """EAGLE-style pairs in token_ids: indexed as pairs; what is neither ids nor pairs is counted, and nothing fails."""
    engine = FakeEngine(width=WIDTH)
    engine.server_info["speculative_algorithm"] = "EAGLE"
    source = await stage.wire(engine)
    router = await stage.router(engine)
    pairs = [list(pair) for pair in itertools.pairwise(PROMPT)][: 2 * WIDTH]
    triples = [[1, 2, 3]] * WIDTH
    await source.publish_payload(batch(stored_map([7], triples), stored_map([1, 2], pairs)))
    await router.until_matched(PROMPT, {engine.url: 2 * WIDTH})
    assert await router.matched(PROMPT[: 2 * WIDTH + 2]) == {engine.url: 2 * WIDTH}
    assert await router.matched(PROMPT[: 2 * WIDTH + 1]) == {engine.url: WIDTH}  # 12 tokens make 11 pairs
    assert (await router.get("/index", url=engine.url, dp_rank=0))["rejected_events"] == 1


@pytest.mark.fault("C16")
async def test_prefill_and_decode_engines_keep_their_own_widths(stage: Stage) -> None:
    """A prefill engine at DCP 1 and a decode engine at DCP 4: each lane has its own width."""
    engines = []
    for mode, dcp_size in (("prefill", 1), ("decode", 4)):
        engine = FakeEngine(width=block_width(page_size=16, dcp_size=dcp_size))
        engine.server_info["disaggregation_mode"] = mode
        engines.append(await publishing(stage, engine))
    router = await stage.router(*engines)
    for engine in engines:
        engine.publish(stored(LONG, width=engine.width))
    await router.until_matched(LONG, {engines[0].url: 288, engines[1].url: 256})
    widths = [(await router.replica(engine))["lanes"][0]["emitted_block_size"] for engine in engines]
    assert widths == [16, 64]


@pytest.mark.fault("C17")
async def test_a_page_of_one_token_on_eight_ranks_is_eight_wide(stage: Stage) -> None:
    """Page size 1 with DCP 8: the width is 8."""
    engine = await publishing(stage, FakeEngine(width=block_width(page_size=1, dcp_size=8)))
    router = await stage.router(engine)
    engine.publish(stored(PROMPT, width=8))
    await router.until_matched(PROMPT, {engine.url: 56})
    lane = (await router.replica(engine))["lanes"][0]
    assert (lane["advertised_block_size"], lane["emitted_block_size"]) == (8, 8)


@pytest.mark.fault("C18")
@pytest.mark.parametrize(("odd", "why"), [("1056", "rank 1: 1056"), ("None", "no value from rank 1")])
async def test_engines_behind_one_address_must_agree(stage: Stage, odd: str, why: str) -> None:
    """Engines behind one address report 4224 twice, or 4224 and another, or one nothing: a width, or none and why."""
    engine = FakeVllm(width=WIDTH)
    engine.publish_on()
    agreeing = [
        {"engine": str(rank), "block_size": "16", "effective_attention_block_size": "4224"} for rank in range(2)
    ]
    engine.cache_config = agreeing
    await stage.engine(engine)
    router = await stage.router(engine)

    async def advertised() -> int | None:
        width: int | None = (await router.replica(engine))["lanes"][0]["advertised_block_size"]
        return width

    assert await advertised() == 4224
    engine.cache_config = [agreeing[0], agreeing[1] | {"effective_attention_block_size": odd}]
    fault = await router.until_fault(engine, "agreement-missing")
    assert why in fault["detail"]
    assert await advertised() is None
    engine.cache_config = agreeing[:1]
    await router.until_no_fault(engine)

    async def agreed() -> bool:
        return await advertised() == 4224

    await until(agreed, "4224 is advertised again")


@pytest.mark.fault("C18")
async def test_a_server_that_says_why_it_advertises_nothing_is_quoted(stage: Stage) -> None:
    """A server in front of engines that do not agree advertises none and says why: that is the fault, until it ends."""
    engine = await publishing(stage)
    descriptor = engine.server_info["kv_events"]
    engine.server_info |= {"kv_events": None, "kv_events_reason": "engines disagree (rank 0: 4224, rank 1: 1056)"}
    router = await stage.router(engine)
    fault = await router.until_fault(engine, "agreement-missing")
    assert "rank 1: 1056" in fault["detail"]
    engine.server_info |= {"kv_events": descriptor, "kv_events_reason": None}
    await router.until_no_fault(engine)
    engine.publish(stored(PROMPT, width=WIDTH))
    await router.until_matched(PROMPT, {engine.url: 60})
