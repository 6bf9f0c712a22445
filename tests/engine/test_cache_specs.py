"""Specs say in one place what DCP shards: widths, row widths, where hits may end and what may be advertised follow."""

from __future__ import annotations

from math import ceil, lcm

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.agreement import Agreement
from contract.geometry import Geometry
from engine.cache.specs import CacheGroups, FullAttentionSpec, SlidingWindowSpec, SpecError, StateSpec, UniformSpec

SHARDED = FullAttentionSpec(Geometry(page_size=3, dcp_size=2))
sizes = st.integers(1, 64)


@given(sizes, sizes, st.integers(0, 10_000))
def test_a_full_attention_row_has_one_entry_a_logical_block(page_size: int, dcp_size: int, length: int) -> None:
    spec = FullAttentionSpec(Geometry(page_size=page_size, dcp_size=dcp_size))
    width = page_size * dcp_size
    assert (spec.block_width, spec.hit_width, spec.sharded) == (width, width, True)
    assert spec.row_width(length) == ceil(length / width)


@given(sizes, st.integers(0, 10_000))
def test_a_state_has_no_token_slots_and_is_never_scaled(interval: int, length: int) -> None:
    spec = StateSpec(interval)
    assert (spec.block_width, spec.hit_width, spec.sharded) == (None, interval, False)
    assert spec.row_width(length) == 1


def test_uniform_layers_answer_what_each_of_them_answers() -> None:
    spec = UniformSpec({f"layer {n}": SHARDED for n in range(5)})
    assert (spec.kind, spec.sharded, spec.block_width, spec.hit_width) == ("full_attention", True, 6, 6)
    assert spec.row_width(100) == 17  # not the 34 of an unsharded page of 3 tokens


def test_layers_that_differ_are_named_with_their_numbers() -> None:
    other = FullAttentionSpec(Geometry(page_size=3, dcp_size=1))
    layers = {f"layer {n}": SHARDED for n in range(5)} | {"layer 7": other}
    expected = (
        "layers of one cache group disagree on block_width: "
        r"6 in layer 0, layer 1, layer 2 and 2 more; 3 in layer 7$"
    )
    with pytest.raises(SpecError, match=expected):
        UniformSpec(layers)


def test_layers_of_two_kinds_are_no_group() -> None:
    with pytest.raises(SpecError, match="disagree on kind: full_attention in a; mamba in b"):
        UniformSpec({"a": SHARDED, "b": StateSpec(6)})


@pytest.mark.parametrize("make", [lambda: UniformSpec({}), lambda: CacheGroups([]), lambda: StateSpec(0)])
def test_nothing_to_store_is_refused(make: object) -> None:
    with pytest.raises(SpecError, match="1"):
        make()  # type: ignore[operator]


def test_a_sliding_window_is_refused_by_name_under_dcp_only() -> None:
    assert SlidingWindowSpec(Geometry(page_size=3), window=512).row_width(10) == 4
    with pytest.raises(
        SpecError, match=r"^sliding_window layers \(window 512\) .* dcp_size 2: a window needs dcp_size 1"
    ) as caught:
        SlidingWindowSpec(Geometry(page_size=3, dcp_size=2), window=512)
    assert "\n" not in str(caught.value)


@given(sizes, sizes, sizes)
def test_groups_meet_at_the_least_common_multiple(page_size: int, dcp_size: int, interval: int) -> None:
    attention = FullAttentionSpec(Geometry(page_size=page_size, dcp_size=dcp_size))
    assert CacheGroups([attention]).hit_width == page_size * dcp_size
    hybrid = CacheGroups([attention, StateSpec(interval)])
    assert hybrid.hit_width == lcm(page_size * dcp_size, interval)
    assert hybrid.has_states
    assert hybrid.advertised_width() == Agreement(page_size * dcp_size)


def test_the_advertised_width_is_that_of_all_full_attention_groups_or_none_and_why() -> None:
    wide = FullAttentionSpec(Geometry(page_size=16, dcp_size=2))
    assert CacheGroups([SHARDED, StateSpec(8), SHARDED]).advertised_width() == Agreement(6)
    differ = CacheGroups([SHARDED, StateSpec(8), wide]).advertised_width()
    assert differ == Agreement(None, "full-attention groups differ in block width (group 0: 6, group 2: 32)")
    none = CacheGroups([StateSpec(8)]).advertised_width()
    assert none.value is None
    assert none.reason == "no cache group holds full attention (there is mamba), so there is no block width"
