from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from contract.hashing import TokenIdError, block_key, block_keys, extend_key, namespace_key

WIDTH = 6
narrow_ids = st.integers(0, 2**32 - 1)
any_ids = st.integers(0, 2**64 - 1)


def keys_by_the_book(tokens: list[int], parent: int) -> list[int]:
    keys = []
    for start in range(0, len(tokens) - WIDTH + 1, WIDTH):
        block = tokens[start : start + WIDTH]
        wide = max(block) >= 2**32
        data = b"\xff" + struct.pack(f"<{WIDTH}Q", *block) if wide else struct.pack(f"<{WIDTH}I", *block)
        parent = xxh3_64_intdigest(data, parent)
        keys.append(parent)
    return keys


@given(st.lists(st.one_of(narrow_ids, any_ids), max_size=40), st.integers(0, 2**64 - 1))
def test_keys_follow_the_written_rule(tokens: list[int], parent: int) -> None:
    assert list(block_keys(tokens, width=WIDTH, parent=parent)) == keys_by_the_book(tokens, parent)


def test_the_rule_is_pinned() -> None:
    # A change of these values orphans every index and every recorded trace.
    assert list(block_keys(range(12), width=6)) == [6427388644774729812, 4310824680945441400]
    assert namespace_key(cache_salt="tenant-1") == 4632870088530651246


@given(st.lists(narrow_ids, min_size=WIDTH, max_size=40))
def test_one_block_at_a_time_gives_the_same_chain(tokens: list[int]) -> None:
    parent, keys = 0, []
    for start in range(0, len(tokens) - WIDTH + 1, WIDTH):
        parent = block_key(tokens[start : start + WIDTH], parent=parent)
        keys.append(parent)
    assert keys == list(block_keys(tokens, width=WIDTH))


@given(st.lists(narrow_ids, min_size=2 * WIDTH, max_size=40), st.integers(0, WIDTH - 1))
def test_partial_blocks_have_no_key_and_change_none(tokens: list[int], cut: int) -> None:
    whole = block_keys(tokens, width=WIDTH)
    shorter = block_keys(tokens[: len(tokens) - cut], width=WIDTH)
    assert shorter == whole[: len(shorter)]
    assert len(whole) == len(tokens) // WIDTH


def test_namespaces_never_share_a_key() -> None:
    parents = [
        namespace_key(),
        namespace_key(lora_name="x"),
        namespace_key(cache_salt="x"),
        namespace_key(lora_name="x", cache_salt="x"),
    ]
    first_keys = {block_keys(range(WIDTH), width=WIDTH, parent=parent)[0] for parent in parents}
    assert namespace_key() == 0
    assert len(first_keys) == len(parents)


def test_a_multimodal_block_differs_from_the_text_block_of_the_same_ids() -> None:
    key = block_key(range(WIDTH), parent=0)
    assert extend_key(key, [["img-hash", 12]]) != key
    assert extend_key(key, [["img-hash", 12]]) != extend_key(key, [["img-hash", -4]])


@pytest.mark.parametrize("bad", [-1, 2**64])
def test_an_id_that_no_engine_sends_is_named(bad: int) -> None:
    with pytest.raises(TokenIdError, match=rf"token id {bad} is outside"):
        block_keys([1, 2, bad, 4, 5, 6], width=WIDTH)
