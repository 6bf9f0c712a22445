"""A hybrid behind HTTP: its ranks are processes, its hits end where states are kept, its events tell of blocks only."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from engine_client import Client
from engine_process import EVENTS, SMALL, EngineProcess
from hf_models import LINEAR_LAYER, save_random_model
from prometheus_client.parser import text_string_to_metric_families
from small_tokenizer import VOCAB, publish_tokenizer

from engine.config import ConfigError, EngineConfig

COMPLETIONS = "/v1/completions"


async def complete(client: Client, prompt: list[int]) -> tuple[str, int]:
    """The greedy answer and the tokens that were cached."""
    status, answer = await client.post(COMPLETIONS, {"prompt": prompt, "max_tokens": 6, "temperature": 0})
    assert status == 200, answer
    return answer["choices"][0]["text"], answer["usage"]["prompt_tokens_details"]["cached_tokens"]


async def metric(client: Client, name: str) -> float:
    _, text = await client.get("/metrics")
    families = text_string_to_metric_families(text)
    return next(sample.value for family in families for sample in family.samples if sample.name.endswith(name))


async def test_hits_end_where_blocks_and_states_meet(http: aiohttp.ClientSession) -> None:
    """Blocks of 6 tokens, states every 4: hits end at multiples of 12, events stay at 6."""
    flags = ("--model-path", "tiny-hybrid", "--device", "cpu", "--max-total-tokens", "2048", "--state-interval", "4")
    with EngineProcess(*flags, *SMALL, "--rank-backend", "processes", "--kv-events-config", EVENTS) as process:
        client = Client(http, process.wait_ready().url)
        shared, one, other, third = list(range(60)), [70] * 15, [80] * 15, [90] * 15
        first = await complete(client, shared + one)
        assert (await complete(client, shared + one)) == (first[0], 72)
        assert (await complete(client, shared + other))[1] == 0  # nobody knew that prompts part behind 60 tokens
        assert await metric(client, "stateless_tokens_total") == 60
        assert (await complete(client, shared + third))[1] == 60
        assert await metric(client, "held_snapshots") > 0
        _, info = await client.get("/server_info")
        _, blocks = await client.get("/kv_blocks")
        assert await asyncio.to_thread(process.end) == 0
    assert (info["kv_events"]["block_size"], info["state_interval"], blocks["block_size"]) == (6, 4, 6)
    assert len(blocks["blocks"]) > 0
    assert info["cache_groups"] == [
        {"kind": "full_attention", "sharded": True, "block_width": 6, "hit_width": 6},
        {"kind": "mamba", "sharded": False, "block_width": None, "hit_width": 4},
    ]


@pytest.fixture
def states_only(tmp_path: Path) -> Path:
    """A model of Hugging Face's form without any full attention."""
    kinds: dict[str, Any] = {"layer_types": [LINEAR_LAYER] * 4, "vocab_size": VOCAB, "max_position_embeddings": 512}
    save_random_model(tmp_path / "model", "minimax", **kinds)
    publish_tokenizer(tmp_path / "model")
    return tmp_path / "model"


async def test_a_model_without_full_attention_has_no_width_to_advertise(
    http: aiohttp.ClientSession, states_only: Path
) -> None:
    flags = ("--model-path", str(states_only), "--device", "cpu", "--page-size", "4", "--kv-events-config", EVENTS)
    with EngineProcess(*flags) as process:
        client = Client(http, process.wait_ready().url)
        first, second = await complete(client, [5] * 30), await complete(client, [5] * 30)
        _, info = await client.get("/server_info")
        assert await asyncio.to_thread(process.end) == 0
        log = process.stderr
    assert (first[0], 28) == second
    assert info["kv_events"] is None
    reason = "no cache group holds full attention (there is mamba), so there is no block width"
    assert reason in info["kv_events_reason"]
    assert reason in log


@pytest.mark.parametrize("option", ["max_state_snapshots", "state_interval"])
def test_no_room_for_states_is_refused(option: str) -> None:
    with pytest.raises(ConfigError, match=f"{option} must be at least 1, got 0"):
        EngineConfig(**{option: 0})
