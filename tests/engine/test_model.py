"""The model on every layout: logits equal those of plain full attention, however a sequence is computed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from random import Random

import pytest
import torch
from chunked_engine import CPU, ChunkedEngine
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from naive_llama import naive_logits, whole_weights

from contract.geometry import Geometry
from engine.cache.pools import KVPool
from engine.model.attention import Attention
from engine.model.config import TINY
from engine.model.source import ModelSource
from engine.model.step import DecodePart, ExtendPart, Step, plan_step
from engine.model.tiny_weights import draw_checkpoint
from engine.model.weights import load_weights
from engine.parallel.group import Group
from engine.parallel.layout import Layout
from engine.parallel.threads import ThreadWorld
from engine.request import SamplingParams
from engine.runner.base import Chunk

NUM_BLOCKS = 300
TOLERANCE = 2e-4  # logits have a standard deviation of 3; up to 4e-5 was seen

LAYOUTS = [(1, 1), (2, 1), (2, 2), (3, 3), (4, 1), (4, 2), (4, 4)]
GEOMETRIES = [(1, 1), (3, 1), (16, 1), (4, 2)]  # page size, interleave


@pytest.fixture(scope="module", params=LAYOUTS, ids=lambda sizes: f"tp{sizes[0]}-dcp{sizes[1]}")
def engines(request: pytest.FixtureRequest) -> Iterator[list[ChunkedEngine]]:
    tp_size, dcp_size = request.param
    layout = Layout(tp_size=tp_size, dcp_size=dcp_size)
    made = [
        ChunkedEngine(
            ModelSource(config=TINY),
            layout=layout,
            geometry=Geometry(page_size=page_size, dcp_size=dcp_size, interleave=interleave),
            num_blocks=NUM_BLOCKS,
            reference=naive_logits,
            tolerance=TOLERANCE,
        )
        for page_size, interleave in GEOMETRIES
    ]
    yield made
    for engine in made:
        engine.world.close()


@settings(max_examples=12, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(1, 60), min_size=1, max_size=5), st.integers(0, 2**32))
@example([1], 0)
@example([2, 1, 3], 0)  # shorter than most DCP groups
def test_logits_are_those_of_full_attention_at_any_chunking_batching_and_placement(
    engines: list[ChunkedEngine], lengths: list[int], seed: int
) -> None:
    random = Random(seed)
    prompts = [[random.randrange(TINY.vocab_size) for _ in range(length)] for length in lengths]
    for engine in engines:
        engine.check(prompts, random)


def test_a_chunk_longer_than_a_tile_is_computed_like_any_other(engines: list[ChunkedEngine]) -> None:
    random = Random(1)
    prompt = [random.randrange(TINY.vocab_size) for _ in range(299)]
    for engine in engines:
        table = random.sample(range(NUM_BLOCKS), engine.geometry.blocks_for(len(prompt)))
        engine.run([engine.chunk(prompt, start=0, stop=7, table=table)])
        logits = engine.run([engine.chunk(prompt, start=7, stop=len(prompt), table=table)])
        engine.compare(logits[0], naive_logits(prompt)[-1])


def test_a_prefix_cached_by_another_sequence_is_as_good_as_computed(engines: list[ChunkedEngine]) -> None:
    random = Random(2)
    shared = [random.randrange(256) for _ in range(48)]
    for engine in engines:
        width = engine.geometry.block_width
        cached = engine.geometry.full_blocks(len(shared)) * width
        table = list(range(engine.geometry.blocks_for(len(shared) + 10)))
        engine.run([engine.chunk(shared, start=0, stop=len(shared), table=table)])
        other = [*shared[:cached], *(random.randrange(256) for _ in range(10))]
        own = [*table[: cached // width], *range(200, 200 + len(table))]
        logits = engine.run([engine.chunk(other, start=cached, stop=len(other), table=own)])
        engine.compare(logits[0], naive_logits(other)[-1])


def test_every_token_lives_on_one_rank_of_its_group_only() -> None:
    """After a prefill the ranks' pools hold, together, each token once for each group of heads."""
    layout, geometry = Layout(tp_size=4, dcp_size=2), Geometry(page_size=3, dcp_size=2)
    pools: dict[int, KVPool] = {}

    def build(group: Group) -> Callable[[Step], None]:
        heads = layout.heads(TINY, group=layout.group(group.rank))
        pools[group.rank] = KVPool(
            num_layers=1,
            num_blocks=9,
            page_size=geometry.page_size,
            num_kv_heads=heads.num_kv_heads,
            head_dim=TINY.head_dim,
            device=CPU,
        )
        pair = group.subgroup(size=layout.dcp_size)
        attention = Attention(pool=pools[group.rank], geometry=geometry, group=pair, device=CPU)

        def work(step: Step) -> None:
            rows = len(step.tokens)
            queries = torch.ones(rows, heads.num_heads, TINY.head_dim)
            states = torch.ones(rows, heads.num_kv_heads, TINY.head_dim)
            attention.forward(
                0, queries=queries, keys=states, values=states, step=step, placement=attention.place(step)
            )

        return work

    world = ThreadWorld(size=layout.tp_size, build=build)
    table = [4, 8, 0]
    world.call(plan_step([chunk_of(15, table)], geometry, device=CPU))
    world.close()
    for group in range(layout.num_groups):
        held = sum(int((pools[rank].pages(0)[0] != 0).any(-1).any(-1).sum()) for rank in (2 * group, 2 * group + 1))
        assert held == 15
    assert [int((pools[rank].pages(0)[1] != 0).any(-1).any(-1).sum()) for rank in range(4)] == [8, 7, 8, 7]


def chunk_of(length: int, table: Sequence[int], *, start: int = 0, request_id: int = 0) -> Chunk:
    return Chunk(
        request_id=request_id, tokens=[1] * length, context_length=start, block_table=table, sampling=SamplingParams()
    )


def test_decodes_of_like_length_are_batched_and_long_chunks_are_tiled() -> None:
    geometry = Geometry(page_size=3, dcp_size=2)
    long, short = list(range(200)), [1, 2]
    step = plan_step(
        [
            chunk_of(600, long, start=5),
            chunk_of(1, short, start=9),
            chunk_of(1, long, start=1190),
            chunk_of(1, short, start=11),
        ],
        geometry,
        device=CPU,
    )
    assert [type(part) for part in step.parts] == [DecodePart, DecodePart, ExtendPart, ExtendPart, ExtendPart]
    assert [(part.start, part.stop) for part in step.parts] == [(0, 2), (2, 3), (3, 259), (259, 515), (515, 603)]
    assert step.positions[:4].tolist() == [9, 11, 1190, 5]
    assert step.blocks[:4].tolist() == [2, 2, 198, 0]
    assert step.sampled.tolist() == [602, 0, 2, 1]
    assert [part.length for part in step.parts if isinstance(part, ExtendPart)] == [261, 517, 605]


def test_a_block_table_too_short_for_its_tokens_is_an_error_that_names_the_request() -> None:
    with pytest.raises(AssertionError, match="request 7: 3 blocks needed, its table has 2"):
        plan_step([chunk_of(13, [0, 1], request_id=7)], Geometry(page_size=3, dcp_size=2), device=CPU)


def test_ranks_hold_their_shares_of_the_same_weights() -> None:
    """Rank 3 of 4 in pairs: the second half of the heads, of whose columns it takes the second half again."""
    whole = whole_weights().layers[1]
    shard = Layout(tp_size=4, dcp_size=2).weights(TINY, rank=3)
    share = load_weights(draw_checkpoint(TINY), TINY, shard, device=CPU, dtype=torch.float32).layers[1]
    queries, keys, values = torch.split(whole.qkv, [64, 32, 32])
    gate, up = whole.gate_up.chunk(2)
    assert torch.equal(share.qkv, torch.cat([queries[32:], keys[16:], values[16:]]))
    assert torch.equal(share.out, whole.out[:, 48:])
    assert torch.equal(share.gate_up, torch.cat([gate[96:], up[96:]]))
    assert torch.equal(share.down, whole.down[:, 96:])
