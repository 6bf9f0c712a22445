"""The compiled core answers what the plain one answers, to everything that may come in."""

from __future__ import annotations

import json
import random
from array import array
from typing import Any

import pytest
from hypothesis import example, given
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
spaces = st.text(" \t\r\n", max_size=2)
numbers = st.one_of(
    ids.map(str),
    st.sampled_from(["", "-0", "-1", "00", "07", "1.0", "1e3", "1E0", "+1", "0x1", "1_0", "4294967296", "9" * 30]),
    st.sampled_from(["1 2", "null", "true", "NaN", '"1"', "[1]", "{}", "\x0b1", "\xa01", "\u0661", "1\x00", ":"]),
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


@given(st.lists(ids, min_size=1, max_size=30), spaces, st.sampled_from([None, 2**32, 2**31, 1000]))
def test_arrays_of_ids_are_read_however_they_are_spaced(tokens: list[int], space: str, below: int | None) -> None:
    text = space + json.dumps(tokens, separators=(space + "," + space, ":")) + space
    limit = max(tokens) + 1 if below is None else below
    expected = array("I", tokens).tobytes() if max(tokens) < limit else None
    assert compiled.read_ids(text.encode(), limit) == plain_keys.read_ids(text.encode(), limit) == expected


@given(
    st.lists(st.tuples(spaces, numbers, spaces).map("".join), max_size=5).map(",".join),
    st.sampled_from(["[", "", " [", "[[", "{", "[,"]),
    st.sampled_from(["]", "", "] ", "]]", "}", ",]", "]x", "]\x00"]),
    st.sampled_from([2**32, 2**31, 10, 0, -1]),
)
def test_unusual_json_is_left_to_python_or_read_alike(inner: str, begin: str, end: str, below: int) -> None:
    text = f"{begin}{inner}{end}".encode()
    assert compiled.read_ids(text, below) in (None, plain_keys.read_ids(text, below))


@given(st.binary(max_size=12), st.booleans())
def test_any_bytes_are_left_to_python_or_read_alike(data: bytes, closed: bool) -> None:
    text = b"[1," + data + b"]" * closed
    assert compiled.read_ids(text, 2**32) in (None, plain_keys.read_ids(text, 2**32))


def test_every_cut_of_an_array_is_no_array() -> None:
    text = b"[0, 7,12345678 ,4294967295,3]"
    assert compiled.read_ids(text, 2**32) == array("I", [0, 7, 12345678, 2**32 - 1, 3]).tobytes()
    assert [cut for cut in range(len(text)) if compiled.read_ids(text[:cut], 2**32) is not None] == []


@given(st.lists(ids, max_size=40))
@example([0, 9, 10, 4_294_967_295])
def test_ids_are_written_alike_and_read_again(tokens: list[int]) -> None:
    packed = array("I", tokens)
    written = compiled.write_ids(packed)
    assert written == plain_keys.write_ids(packed)
    assert json.loads(written) == tokens
