"""The compiled core answers what the plain one answers, to everything that may come in."""

from __future__ import annotations

import random
from array import array
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from contract import plain_keys

compiled = pytest.importorskip("contract._keys", reason="the compiled core was not built")

SEED = 4
words = st.integers(0, 2**64 - 1)
ids = st.integers(0, 2**32 - 1)
wire_ints = st.one_of(
    st.integers(-(2**63), 2**64 - 1), *(st.integers(-(2**bits), 2**bits) for bits in (5, 7, 8, 16, 32))
)
anything = st.one_of(wire_ints, st.booleans(), st.none(), st.floats(allow_nan=False), st.binary(), st.text())


@given(st.lists(ids, max_size=70), st.integers(1, 20), words)
def test_chains_are_equal(tokens: list[int], width: int, parent: int) -> None:
    packed = array("I", tokens)
    assert compiled.chain(packed, width, parent) == plain_keys.chain(packed, width, parent)


@pytest.mark.parametrize("parent", [0, 1, 2**32, 2**64 - 1])
def test_every_length_of_block_hashes_as_xxh3(parent: int) -> None:
    """All paths of the hash: up to 8, 16, 128 and 240 bytes, and longer ones up to several of its inner blocks."""
    data = random.Random(SEED).randbytes(4 * 1100)
    for width in (*range(1, 130), 255, 256, 257, 272, 511, 512, 513, 1024, 1100):
        expected = xxh3_64_intdigest(data[: 4 * width], parent)
        assert compiled.chain(data[: 4 * width], width, parent) == expected.to_bytes(8, "little"), width


@given(st.one_of(st.lists(anything, max_size=5), st.lists(ids, max_size=20), anything))
def test_ids_are_packed_alike(given_ids: Any) -> None:
    packed = compiled.pack_list(given_ids)
    if packed is None and isinstance(given_ids, list):  # what is unusual may be left to Python, but not changed
        assert any(type(one) is not int or not 0 <= one < 2**32 for one in given_ids)
    else:
        assert packed == plain_keys.pack_list(given_ids)


@pytest.mark.parametrize("width", [0, -1])
def test_a_block_of_no_ids_is_refused(width: int) -> None:
    with pytest.raises(ValueError, match=rf"width of {width}"):
        compiled.chain(b"", width, 0)
