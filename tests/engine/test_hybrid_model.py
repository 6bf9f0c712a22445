"""The hybrid on every layout: logits equal those of the plain recurrence, from every place a state was kept at."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random

import msgspec
import pytest
import torch
from chunked_engine import CPU, ChunkedEngine
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from naive_hybrid import naive_logits, whole_weights

from contract.geometry import Geometry
from engine.cache.specs import SpecError
from engine.model.build import open_checkpoint
from engine.model.checkpoint import CheckpointError, TensorTable
from engine.model.config import TINY
from engine.model.groups import cache_groups
from engine.model.hybrid_config import TINY_HYBRID, HybridConfig, Residual
from engine.model.hybrid_weights import HybridWeights, LinearWeights, load_hybrid
from engine.model.source import ModelSource
from engine.model.tiny_hybrid_weights import draw_hybrid_checkpoint
from engine.parallel.layout import Layout
from engine.request import SamplingParams
from engine.runner.base import Chunk, StateMoves

NUM_BLOCKS = 250
TOLERANCE = 1e-3  # logits have a standard deviation of 2.5; states add up, and up to 3e-4 was seen
LAYOUTS = [(1, 1), (2, 1), (2, 2), (3, 3), (4, 2)]
PAGE_SIZES = [1, 3, 16]
MIXED: HybridConfig = msgspec.structs.replace(
    TINY_HYBRID,
    name="mixed",
    num_layers=4,
    linear_layers=(1, 2),
    num_experts=3,
    experts_per_token=2,
    full_residual=Residual(0.9, 1.2),
    linear_residual=Residual(1.1, 0.8),
    mlp_residual=Residual(0.7, 1.3),
)


def engine_of(model: HybridConfig, *, tp_size: int, dcp_size: int, page_size: int) -> ChunkedEngine:
    return ChunkedEngine(
        ModelSource(config=model),
        layout=Layout(tp_size=tp_size, dcp_size=dcp_size),
        geometry=Geometry(page_size=page_size, dcp_size=dcp_size),
        num_blocks=NUM_BLOCKS,
        reference=lambda tokens: naive_logits(tokens, model),
        tolerance=TOLERANCE,
    )


@pytest.fixture(scope="module", params=LAYOUTS, ids=lambda sizes: f"tp{sizes[0]}-dcp{sizes[1]}")
def engines(request: pytest.FixtureRequest) -> Iterator[list[ChunkedEngine]]:
    tp_size, dcp_size = request.param
    made = [
        engine_of(model, tp_size=tp_size, dcp_size=dcp_size, page_size=page_size)
        for model in (TINY_HYBRID, MIXED)
        for page_size in PAGE_SIZES
    ]
    yield made
    for engine in made:
        engine.world.close()


def random_tokens(count: int, random: Random) -> list[int]:
    return [random.randrange(TINY_HYBRID.vocab_size) for _ in range(count)]


@settings(max_examples=4, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(1, 40), min_size=1, max_size=3), st.integers(0, 2**32))
@example([2, 1, 3], 0)  # shorter than most DCP groups
def test_logits_are_those_of_the_recurrence_at_any_chunking_batching_and_placement(
    engines: list[ChunkedEngine], lengths: list[int], seed: int
) -> None:
    random = Random(seed)
    prompts = [random_tokens(length, random) for length in lengths]
    for engine in random.sample(engines, 3):
        engine.check(prompts, random)


def test_a_sequence_continues_from_any_state_that_was_kept(engines: list[ChunkedEngine]) -> None:
    """One chunk keeps states at several places; others start from those, in a step that writes over their sources."""
    random = Random(4)
    shared, cuts = random_tokens(90, random), [6, 48, 64, 89, 90]
    for engine in engines:
        width = engine.geometry.block_width
        table = list(range(engine.geometry.blocks_for(len(shared))))
        saves = tuple((cut, slot) for slot, cut in enumerate(cuts))
        engine.run([chunk_of(shared, start=0, table=table, moves=StateMoves(source=None, saves=saves))])
        usable = [(slot, cut) for slot, cut in enumerate(cuts) if cut % width == 0]
        tails = [random_tokens(random.randint(1, 9), random) for _ in usable]
        free = iter(range(len(table), NUM_BLOCKS))
        chunks = [
            chunk_of(
                [*shared[:cut], *tail],
                start=cut,
                table=[*table[: cut // width], *(next(free) for _ in range(engine.geometry.blocks_for(len(tail))))],
                moves=StateMoves(source=slot, saves=((len(tail), usable[index - 1][0]),)),  # another one's source
            )
            for index, ((slot, cut), tail) in enumerate(zip(usable, tails, strict=True))
        ]
        if not chunks:
            continue
        for (_, cut), tail, logits in zip(usable, tails, engine.run(chunks), strict=True):
            model = MIXED if engine in engines[len(PAGE_SIZES) :] else TINY_HYBRID
            engine.compare(logits, naive_logits([*shared[:cut], *tail], model)[-1])


def chunk_of(tokens: Sequence[int], *, start: int, table: Sequence[int], moves: StateMoves) -> Chunk:
    return Chunk(
        request_id=0,
        tokens=tokens[start:],
        context_length=start,
        block_table=table,
        sampling=SamplingParams(),
        states=moves,
    )


def test_the_states_of_a_rank_are_the_same_at_every_layout_and_its_pages_are_not() -> None:
    """Sharded or replicated, as the specs of the groups say."""
    for dcp_size in (1, 2, 4):
        geometry = Geometry(page_size=16, dcp_size=dcp_size)
        full, linear = cache_groups(TINY_HYBRID, geometry, longest=1000).specs
        assert (full.kind, full.sharded, full.row_width(1000)) == ("full_attention", True, -(-1000 // 16 // dcp_size))
        assert (linear.kind, linear.sharded, linear.row_width(1000)) == ("mamba", False, 1)


def test_groups_are_the_layers_that_store_alike() -> None:
    geometry = Geometry(page_size=3, dcp_size=2)
    assert not cache_groups(TINY, geometry, longest=1000).has_states
    assert not cache_groups(None, geometry, longest=1000).has_states
    hybrid = cache_groups(MIXED, geometry, longest=1000, state_interval=4)
    assert (hybrid.has_states, hybrid.hit_width, hybrid.advertised_width().value) == (True, 12, 6)
    only_states = msgspec.structs.replace(TINY_HYBRID, linear_layers=(0, 1, 2))
    assert cache_groups(only_states, geometry, longest=1000).advertised_width().value is None
    with pytest.raises(SpecError, match="every 1 token or more, got every 0"):
        cache_groups(MIXED, geometry, longest=1000, state_interval=0)


def load(table: TensorTable, *, rank: int = 0, layout: Layout = Layout()) -> HybridWeights:  # noqa: B008 - frozen
    return load_hybrid(
        table,
        MIXED,
        layout.weights(MIXED, rank=rank),
        columns=layout.features(MIXED.num_heads * MIXED.head_dim, rank=rank),
        device=CPU,
        dtype=torch.float32,
    )


def test_ranks_share_out_what_is_behind_the_states_and_nothing_before() -> None:
    layout, whole = Layout(tp_size=3, dcp_size=3), whole_weights(MIXED)
    parts = [load(draw_hybrid_checkpoint(MIXED), rank=rank, layout=layout) for rank in range(3)]
    for index in MIXED.linear_layers:
        expected = whole.layers[index].attention
        shares = [part.layers[index].attention for part in parts]
        assert isinstance(expected, LinearWeights)
        assert all(isinstance(share, LinearWeights) and torch.equal(share.qkv, expected.qkv) for share in shares)
        assert torch.equal(torch.cat([share.out for share in shares], dim=1), expected.out)
        assert [share.out.shape[1] for share in shares] == [21, 21, 22]
    for number in range(MIXED.num_experts):
        downs = [part.layers[0].mlp.experts[number][1] for part in parts]
        assert torch.equal(torch.cat(downs, dim=1), whole.layers[0].mlp.experts[number][1])


def test_a_tensor_too_few_or_too_many_is_named() -> None:
    tensors = {name: torch.zeros(1) for name in ["model.layers.1.self_attn.q_proj.weight"]}
    drawn = draw_hybrid_checkpoint(MIXED)
    held = {name: drawn._tensors[name] for name in drawn.names}
    missing = "model.layers.2.block_sparse_moe.experts.2.w3.weight"
    with pytest.raises(CheckpointError, match=missing):
        load(TensorTable({name: tensor for name, tensor in held.items() if name != missing}, origin="file"))
    with pytest.raises(CheckpointError, match=r"layers\.1\.self_attn\.q_proj\.weight has no place"):
        load(TensorTable(held | tensors, origin="file"))


def test_tiny_hybrid_is_drawn_alike_every_time() -> None:
    first, second = (open_checkpoint(ModelSource(config=TINY_HYBRID)) for _ in range(2))
    for name in first.names:
        shape = first._tensors[name].shape  # type: ignore[attr-defined]
        assert torch.equal(first.read(name, shape=shape), second.read(name, shape=shape))
