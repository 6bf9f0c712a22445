from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.geometry import Geometry, GeometryError, block_width


@st.composite
def geometries(draw: st.DrawFn) -> Geometry:
    interleave = draw(st.integers(1, 4))
    return Geometry(
        page_size=interleave * draw(st.integers(1, 5)), dcp_size=draw(st.integers(1, 5)), interleave=interleave
    )


def test_a_block_stands_for_the_tokens_of_all_ranks() -> None:
    assert block_width(page_size=3, dcp_size=2) == 6
    assert Geometry(page_size=1, dcp_size=8).block_width == 8
    assert Geometry(page_size=16, dcp_size=4).block_width == 64


def test_local_lengths_equal_vllms(golden_dir: Path) -> None:
    cases = json.loads((golden_dir / "vllm-dcp-math.json").read_text())["local_seq_lens"]
    assert len(cases) == 380
    for case in cases:
        geometry = Geometry(page_size=case["block_size"], dcp_size=case["dcp"], interleave=case["interleave"])
        lengths = [geometry.local_length(case["seq_len"], rank=rank) for rank in range(case["dcp"])]
        assert lengths == case["local_seq_lens"], case


@given(geometries(), st.integers(0, 200))
def test_local_length_counts_the_positions_a_rank_owns(geometry: Geometry, length: int) -> None:
    for rank in range(geometry.dcp_size):
        owned = sum(geometry.owner(position) == rank for position in range(length))
        assert geometry.local_length(length, rank=rank) == owned


@given(geometries(), st.integers(0, 4))
def test_a_block_fills_every_row_of_every_rank_once(geometry: Geometry, block: int) -> None:
    start = block * geometry.block_width
    positions = range(start, start + geometry.block_width)
    rows = {(geometry.owner(position), geometry.local_offset(position)) for position in positions}
    assert rows == {(rank, row) for rank in range(geometry.dcp_size) for row in range(geometry.page_size)}
    assert {geometry.block_index(position) for position in positions} == {block}


@given(geometries(), st.integers(0, 200))
def test_full_blocks_round_down_and_stored_blocks_round_up(geometry: Geometry, length: int) -> None:
    full, stored = geometry.full_blocks(length), geometry.blocks_for(length)
    assert full * geometry.block_width <= length <= stored * geometry.block_width
    assert stored - full == (1 if length % geometry.block_width else 0)


@pytest.mark.parametrize(
    ("sizes", "named"),
    [
        ({"page_size": 0}, "page_size must be at least 1, got 0"),
        ({"page_size": 3, "dcp_size": -2}, "dcp_size must be at least 1, got -2"),
        ({"page_size": 3, "dcp_size": 2, "interleave": 2}, "page_size 3 is not a multiple of the DCP interleave 2"),
    ],
)
def test_sizes_that_cannot_be_laid_out_are_refused_by_name(sizes: dict[str, int], named: str) -> None:
    with pytest.raises(GeometryError, match=named):
        Geometry(**sizes)
