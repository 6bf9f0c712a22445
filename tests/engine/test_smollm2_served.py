"""SmolLM2 behind the real server, its ranks in processes: transformers' tokens, cold, cached, and together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import aiohttp
import pytest
from engine_client import Client
from engine_process import EngineProcess
from smollm2 import GoldenPrompt, golden_prompts, needs_smollm2

from bench.smollm2 import FOLDER, GGUF
from contract.geometry import block_width

pytestmark = needs_smollm2

PAGE_SIZE = 3
LAYOUTS = [
    pytest.param(2, 2, FOLDER, id="tp2-dcp2"),
    pytest.param(1, 1, GGUF, id="tp1-dcp1-gguf", marks=pytest.mark.soak),
    pytest.param(3, 1, FOLDER, id="tp3-dcp1", marks=pytest.mark.soak),
    pytest.param(4, 4, FOLDER, id="tp4-dcp4", marks=pytest.mark.soak),
]


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=100)) as session:
        yield session


async def answer(client: Client, golden: GoldenPrompt) -> int:
    """Ask for 32 greedy tokens and compare; how many prompt tokens were cached."""
    cached, text = await asked(client, golden, tokens=32)
    assert text == golden.greedy32_text.replace("<|im_end|>", "").replace("<|im_start|>", "")
    return cached


async def asked(client: Client, golden: GoldenPrompt, *, tokens: int) -> tuple[int, str]:
    """Likewise for so many; with their text."""
    sampling = {"max_new_tokens": tokens, "temperature": 0, "ignore_eos": True}
    status, said = await client.post("/generate", {"input_ids": golden.prompt_ids, "sampling_params": sampling})
    assert (status, said["output_ids"]) == (200, golden.greedy32_ids[:tokens])
    return int(said["meta_info"]["cached_tokens"]), said["text"]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("tp_size", "dcp_size", "path"), LAYOUTS)
async def test_answers_are_those_of_transformers(
    http: aiohttp.ClientSession, tp_size: int, dcp_size: int, path: object
) -> None:
    sizes = ("--tp-size", str(tp_size), "--dcp-size", str(dcp_size), "--page-size", str(PAGE_SIZE))
    flags = ("--rank-backend", "processes", "--device", "cpu", "--max-total-tokens", "2000")
    with EngineProcess("--model-path", str(path), *sizes, *flags) as process:
        client = Client(http, (await asyncio.to_thread(process.wait_ready)).url)
        prompts = golden_prompts()
        assert await answer(client, prompts[-1]) == 0, "alone and cold"
        whole = [
            (len(golden.prompt_ids) - 1) // block_width(page_size=PAGE_SIZE, dcp_size=dcp_size) for golden in prompts
        ]
        width = block_width(page_size=PAGE_SIZE, dcp_size=dcp_size)
        together = await asyncio.gather(*(answer(client, golden) for golden in prompts))
        assert together[-1] == whole[-1] * width > 0, "together, the last one on a cached prefix"
        again = await asyncio.gather(*(asked(client, golden, tokens=8) for golden in reversed(prompts)))
        assert [cached for cached, _ in again] == [n * width for n in reversed(whole)], "together and cached"
        assert await asyncio.to_thread(process.end) == 0
