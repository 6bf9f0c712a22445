"""A real language model: the tokens and logits that transformers computes with it, on every layout of ranks.

Checked are all five prompts of tests/golden/smollm2.json: alone, together, and on a cached prefix.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
import torch
from chunked_engine import ChunkedEngine
from smollm2 import GoldenPrompt, golden_prompts, needs_smollm2

from bench.smollm2 import FOLDER, GGUF
from contract.geometry import Geometry
from engine.model.catalogue import find_model
from engine.parallel.layout import Layout

pytestmark = needs_smollm2

LAYOUTS = [(1, 1), (2, 2), (3, 1), (4, 4)]
PAGE_SIZE = 3
TABLE_BLOCKS = 24  # 72 tokens at dcp 1
ANSWER, BEGINNING = 32, 12
"""Enough of an answer where the same steps, with more rows, are taken to its end by another test."""


@pytest.fixture(scope="module", params=LAYOUTS, ids=lambda sizes: f"tp{sizes[0]}-dcp{sizes[1]}")
def engine(request: pytest.FixtureRequest) -> Iterator[ChunkedEngine]:
    tp_size, dcp_size = request.param
    source = find_model(str(FOLDER)).source
    assert source is not None
    made = ChunkedEngine(
        source,
        layout=Layout(tp_size=tp_size, dcp_size=dcp_size),
        geometry=Geometry(page_size=PAGE_SIZE, dcp_size=dcp_size),
        num_blocks=6 * TABLE_BLOCKS,
    )
    yield made
    made.world.close()


def table(index: int) -> range:
    return range(index * TABLE_BLOCKS, (index + 1) * TABLE_BLOCKS)


def greedy(
    engine: ChunkedEngine, prompts: Sequence[Sequence[int]], *, done: Sequence[int], steps: int
) -> list[list[int]]:
    """Answers of ``steps`` tokens; prompt ``n`` lies in table ``n``, where its first ``done[n]`` tokens are already."""
    tokens, computed = [list(prompt) for prompt in prompts], list(done)
    for _ in range(steps):
        chunks = [
            engine.chunk(text, start=start, stop=len(text), table=table(n))
            for n, (text, start) in enumerate(zip(tokens, computed, strict=True))
        ]
        computed = [len(text) for text in tokens]
        for text, logits in zip(tokens, engine.run(chunks), strict=True):
            text.append(int(logits.argmax()))
    return [text[len(prompt) :] for text, prompt in zip(tokens, prompts, strict=True)]


def assert_golden(logits: torch.Tensor, golden: GoldenPrompt) -> None:
    close = {"atol": 1e-3, "rtol": 0}
    torch.testing.assert_close(logits[golden.last_top5_ids], torch.tensor(golden.last_top5_logits), **close)
    torch.testing.assert_close(logits[:16], torch.tensor(golden.last_logits_first16), **close)
    torch.testing.assert_close(logits.logsumexp(0), torch.tensor(golden.last_logsumexp), **close)


def test_logits_are_those_of_transformers(engine: ChunkedEngine) -> None:
    for golden in golden_prompts():
        ids = golden.prompt_ids
        assert_golden(engine.run([engine.chunk(ids, start=0, stop=len(ids), table=table(0))])[0], golden)


def test_answers_are_those_of_transformers_in_a_mixed_batch_cold_and_on_a_cached_prefix(engine: ChunkedEngine) -> None:
    """The second time all whole blocks of the prompts are there already, as a prefix cache would have them."""
    golden = golden_prompts()
    prompts, expected = [each.prompt_ids for each in golden], [each.greedy32_ids for each in golden]
    assert greedy(engine, prompts, done=[0] * len(prompts), steps=ANSWER) == expected
    width = engine.geometry.block_width
    cached = [(len(prompt) - 1) // width * width for prompt in prompts]
    assert max(cached) > 0
    assert greedy(engine, prompts, done=cached, steps=ANSWER) == expected


@pytest.mark.soak
def test_answers_are_those_of_transformers_alone(engine: ChunkedEngine) -> None:
    for golden in golden_prompts():
        expected = golden.greedy32_ids[:BEGINNING]
        assert greedy(engine, [golden.prompt_ids], done=[0], steps=BEGINNING) == [expected]


def test_the_gguf_file_and_the_folder_are_the_same_model_and_tokenizer() -> None:
    file, folder = find_model(str(GGUF)), find_model(str(FOLDER))
    assert file.source is not None
    for golden in golden_prompts():
        assert file.tokenizer.encode(golden.prompt) == folder.tokenizer.encode(golden.prompt) == golden.prompt_ids
    conversation = [{"role": "user", "content": "\n\n123 ways"}]
    assert file.tokenizer.apply_chat(conversation) == folder.tokenizer.apply_chat(conversation)
    alone = ChunkedEngine(file.source, layout=Layout(), geometry=Geometry(page_size=PAGE_SIZE), num_blocks=TABLE_BLOCKS)
    golden = golden_prompts()[0]
    ids = golden.prompt_ids
    assert_golden(alone.run([alone.chunk(ids, start=0, stop=len(ids), table=table(0))])[0], golden)
    alone.world.close()
