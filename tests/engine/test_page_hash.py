"""Block names are SGLang's: a SHA-256 chain over whole blocks, seeded by the cache salt."""

from __future__ import annotations

import hashlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.hashing import TokenIdError
from engine.cache.page_hash import block_name, chain_digests, chain_seed

WIDTH = 6
TOKENS = st.integers(0, 2**32 - 1) | st.integers(2**32, 2**63 - 1)


def blocks_of(count: int) -> st.SearchStrategy[list[int]]:
    return st.lists(TOKENS, min_size=count * WIDTH, max_size=count * WIDTH)


def test_the_documented_names_come_out() -> None:
    first, second = chain_digests([1, 2, 3, 4], width=4, prior=b""), chain_digests
    assert block_name(first[0]) == -3488128144981237669 % 2**64
    assert block_name(second([5], width=1, prior=first[0])[0]) == -3787494577174227566 % 2**64


@given(st.integers(1, 4).flatmap(blocks_of), st.none() | st.text(max_size=9))
def test_digests_are_those_of_a_straightforward_chain(tokens: list[int], salt: str | None) -> None:
    prior = b"" if salt is None else hashlib.sha256(b"sglang-cache-salt-v1\0" + salt.encode()).digest()
    expected = []
    for start in range(0, len(tokens), WIDTH):
        page = tokens[start : start + WIDTH]
        wide = any(token > 2**32 - 1 for token in page)
        body = b"\xff" + struct.pack(f"<{WIDTH}Q", *page) if wide else struct.pack(f"<{WIDTH}I", *page)
        prior = hashlib.sha256(prior + body).digest()
        expected.append(prior)
    assert chain_digests(tokens, width=WIDTH, prior=chain_seed(salt)) == expected


@given(blocks_of(3))
def test_a_chain_can_be_continued_from_any_digest_of_it(tokens: list[int]) -> None:
    whole = chain_digests(tokens, width=WIDTH, prior=b"")
    assert chain_digests(tokens[WIDTH:], width=WIDTH, prior=whole[0]) == whole[1:]


def test_salts_and_no_salt_give_different_chains() -> None:
    names = {chain_digests([7] * WIDTH, width=WIDTH, prior=chain_seed(salt))[0] for salt in (None, "", "a", "b")}
    assert len(names) == 4


@pytest.mark.parametrize("bad", [-1, 2**64])
def test_an_id_that_has_no_hash_is_refused(bad: int) -> None:
    with pytest.raises(TokenIdError, match=str(bad)):
        chain_digests([1, bad], width=2, prior=b"")
