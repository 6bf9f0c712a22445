"""SGLang's own names for cached blocks: a SHA-256 chain over the token ids (0.5.23).

    digest[i] = SHA256(digest[i-1] || token ids of block i as little-endian u32)

The first block has nothing before it, or the seed of its ``cache_salt``. A block that holds an id above 2**32-1 is
hashed as a 0xff marker and u64 ids. All 32 bytes carry the chain; the wire names a block by the first eight, so a
chain cannot be continued from a name. Only whole blocks have a digest. This module keeps no state.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

from contract.hashing import pack_tokens

__all__ = ["block_name", "chain_digests", "chain_seed"]

_SALT_DOMAIN = b"sglang-cache-salt-v1\0"
_NAME_BYTES = 8
_U32_BYTES = 4


def chain_seed(cache_salt: str | None) -> bytes:
    """What stands before the first block's tokens: nothing, or 32 bytes that depend on the salt."""
    return b"" if cache_salt is None else hashlib.sha256(_SALT_DOMAIN + cache_salt.encode()).digest()


def chain_digests(tokens: Sequence[int], *, width: int, prior: bytes) -> list[bytes]:
    """The 32-byte digests of consecutive blocks of ``width`` tokens, ``prior`` being the digest before the first.

    Raises:
        contract.hashing.TokenIdError: an id is negative or above 2**64-1.
    """
    packed = pack_tokens(tokens)
    if len(packed) == _U32_BYTES * len(tokens):
        view, step = memoryview(packed), _U32_BYTES * width
        return _chain((view[start : start + step] for start in range(0, len(packed), step)), prior)
    return _chain((pack_tokens(tokens[start : start + width]) for start in range(0, len(tokens), width)), prior)


def _chain(pages: Iterable[bytes | memoryview], prior: bytes) -> list[bytes]:
    digests = []
    for page in pages:
        prior = hashlib.sha256(prior + page).digest()
        digests.append(prior)
    return digests


def block_name(digest: bytes) -> int:
    """The unsigned 64 bits that name a block in events; SGLang's wire carries the same bits signed."""
    return int.from_bytes(digest[:_NAME_BYTES], "big")
