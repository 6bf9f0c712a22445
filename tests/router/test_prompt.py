"""Prompts: hashed once per width, no further than asked, under the keys that the contract defines."""

from __future__ import annotations

import itertools
import random
from array import array

import pytest

from contract.hashing import TokenIdError, block_keys, namespace_key
from router.prompt import Prompt

WIDTH = 6


def test_keys_are_the_contracts_chain_at_every_width() -> None:
    tokens = random.Random(7).choices(range(150_000), k=1_000)
    prompt = Prompt(tokens)
    for width in (1, WIDTH, 16, 64):
        assert array("Q", prompt.keys(width=width)) == block_keys(tokens, width=width)


def test_keys_are_hashed_only_as_far_as_somebody_looks() -> None:
    keys = Prompt(range(WIDTH * 1_000)).keys(width=WIDTH)
    assert keys.hashed == 0
    first = keys[0]
    assert 1 <= keys.hashed < 20
    assert keys[300] == list(keys)[300]
    assert keys[0] == first


def test_one_look_at_a_width_serves_the_next() -> None:
    prompt = Prompt(range(100))
    assert prompt.keys(width=WIDTH) is prompt.keys(width=WIDTH)
    assert prompt.keys(width=WIDTH) is not prompt.keys(width=WIDTH, pairs=True)


def test_iterating_twice_at_once_gives_each_reader_everything() -> None:
    keys = Prompt(range(WIDTH * 50)).keys(width=WIDTH)
    assert list(zip(keys, keys, strict=True)) == [(key, key) for key in keys]


def test_a_partial_block_has_no_key() -> None:
    assert len(Prompt(range(WIDTH - 1)).keys(width=WIDTH)) == 0
    assert len(Prompt(range(2 * WIDTH + 1)).keys(width=WIDTH)) == 2
    with pytest.raises(IndexError, match="block 2 of 2"):
        Prompt(range(2 * WIDTH)).keys(width=WIDTH)[2]


def test_pairs_are_neighbours_so_n_tokens_make_one_pair_less() -> None:
    tokens = list(range(10, 10 + WIDTH + 1))
    keys = Prompt(tokens).keys(width=WIDTH, pairs=True)
    flat = [unit for pair in itertools.pairwise(tokens) for unit in pair]
    assert array("Q", keys) == block_keys(flat, width=2 * WIDTH)
    assert len(Prompt(tokens[:-1]).keys(width=WIDTH, pairs=True)) == 0


def test_namespaces_start_chains_of_their_own() -> None:
    tokens = list(range(WIDTH))
    named = [(None, None), ("adapter", None), (None, "salt"), ("adapter", "salt")]
    keys = [Prompt(tokens, lora_name=lora, cache_salt=salt).keys(width=WIDTH)[0] for lora, salt in named]
    assert len(set(keys)) == len(named)
    assert keys[3] == block_keys(tokens, width=WIDTH, parent=namespace_key(lora_name="adapter", cache_salt="salt"))[0]


def test_ids_above_32_bits_are_hashed_as_the_contract_hashes_them() -> None:
    tokens = [1, 2**40, *range(3, 2 * WIDTH + 1)]
    assert array("Q", Prompt(tokens).keys(width=WIDTH)) == block_keys(tokens, width=WIDTH)


@pytest.mark.parametrize("bad", [-1, 2**64])
def test_ids_that_no_engine_has_are_refused(bad: int) -> None:
    with pytest.raises(TokenIdError, match=str(bad)):
        Prompt([1, bad])
