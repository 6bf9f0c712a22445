"""A rank's share of the cache, against the contract's geometry, position by position."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from contract.geometry import Geometry
from engine.cache.pools import KVPool, Shard
from engine.kernels.slot_mapping import NOT_HERE

CPU = torch.device("cpu")
GOLDEN = Path(__file__).parent.parent / "golden" / "vllm-dcp-math.json"


@st.composite
def geometries(draw: st.DrawFn) -> Geometry:
    interleave = draw(st.integers(1, 4))
    runs = draw(st.integers(1, 4))
    return Geometry(page_size=runs * interleave, dcp_size=draw(st.integers(1, 5)), interleave=interleave)


@given(geometries(), st.data())
def test_each_new_token_is_stored_by_its_owner_only_in_the_row_that_the_geometry_names(
    geometry: Geometry, data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, 3 * geometry.block_width))
    positions = range(start, start + data.draw(st.integers(1, 40)))
    table = data.draw(st.permutations(range(geometry.blocks_for(positions.stop))))
    blocks = [table[geometry.block_index(position)] for position in positions]
    for rank in range(geometry.dcp_size):
        slots = Shard(geometry, dcp_rank=rank, device=CPU).slots(torch.tensor(positions), torch.tensor(blocks))
        assert slots.tolist() == [
            block * geometry.page_size + geometry.local_offset(position)
            if geometry.owner(position) == rank
            else NOT_HERE
            for position, block in zip(positions, blocks, strict=True)
        ]


def test_tokens_of_no_block_are_stored_nowhere() -> None:
    positions, blocks = torch.arange(3), torch.tensor([4, NOT_HERE, 4])
    shard = Shard(Geometry(page_size=3), dcp_rank=0, device=CPU)
    assert shard.slots(positions, blocks).tolist() == [12, NOT_HERE, 14]


@given(geometries(), st.integers(0, 200))
def test_a_query_sees_the_own_tokens_at_or_before_it(geometry: Geometry, last: int) -> None:
    positions = torch.arange(last + 1)
    for rank in range(geometry.dcp_size):
        owned = torch.tensor([geometry.owner(position) == rank for position in range(last + 1)])
        seen = Shard(geometry, dcp_rank=rank, device=CPU).visible(positions)
        assert torch.equal(seen, owned.cumsum(0))


def test_what_a_rank_sees_of_a_whole_sequence_is_its_local_length_in_the_recorded_cases() -> None:
    for case in json.loads(GOLDEN.read_text())["local_seq_lens"]:
        if not case["seq_len"]:
            continue
        geometry = Geometry(page_size=case["block_size"], dcp_size=case["dcp"], interleave=case["interleave"])
        last = torch.tensor([case["seq_len"] - 1])
        seen = [int(Shard(geometry, dcp_rank=rank, device=CPU).visible(last)) for rank in range(case["dcp"])]
        assert seen == case["local_seq_lens"]


def pool(**changes: int) -> KVPool:
    sizes = {"num_layers": 2, "num_blocks": 5, "page_size": 3, "num_kv_heads": 2, "head_dim": 4} | changes
    return KVPool(**sizes, device=CPU)


def test_stored_rows_are_found_in_their_pages_and_layer_and_nowhere_else() -> None:
    keys, values = torch.randn(2, 2, 2, 4)
    one = pool()
    one.store(1, slots=torch.tensor([4, 12]), keys=keys, values=values)
    stored_keys, stored_values = one.pages(1)
    assert stored_keys.shape == (5, 3, 2, 4)
    assert torch.equal(stored_keys[1, 1], keys[0])
    assert torch.equal(stored_values[4, 0], values[1])
    assert stored_keys.count_nonzero() == 16
    assert one.pages(0)[0].count_nonzero() == 0


def test_a_rank_holds_page_size_rows_of_a_block_so_that_dcp_divides_the_memory_of_a_token() -> None:
    geometry = Geometry(page_size=3, dcp_size=2)
    per_token = pool(page_size=geometry.page_size).nbytes / (5 * geometry.block_width)
    assert per_token == pytest.approx(2 * 2 * 2 * 4 * 4 / geometry.dcp_size)


def test_a_model_without_attention_layers_has_an_empty_pool() -> None:
    sizes = {"num_blocks": 5, "page_size": 3, "num_kv_heads": 2, "head_dim": 4}
    assert KVPool(num_layers=0, **sizes, device=torch.device("cpu")).nbytes == 0
