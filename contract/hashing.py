"""Block keys: the router's own names for cached prefixes.

An engine's block hashes are opaque names (sha256 or xxhash, seeded or not, 64 or 256 bits): they serve for parents and
removals only. What a router matches prompts by is this chain over the token ids themselves::

    key[-1] = namespace_key(lora_name, cache_salt)
    key[i]  = xxh3_64(ids of block i as little-endian u32, seed=key[i-1])

so two engines with different hash functions index the same prompt under the same keys. A block that holds an id above
2**32-1 (multimodal padding) is hashed as a 0xff marker byte followed by u64 ids, the layout rule of SGLang 0.5.23's
own page hash. Only full blocks have a key. This module does no I/O and keeps no state.

Ids are kept *compact*: an array of u32 where they fit, which is hashed without an int object for each, and a list where
they do not. A compiled core does the work where it was built (``keys_core``).
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Sequence
from typing import TypeAlias

import msgspec
from xxhash import xxh3_64_intdigest

from contract import keys_core

__all__ = [
    "Ids",
    "TokenIdError",
    "block_key",
    "block_keys",
    "compact",
    "extend_key",
    "namespace_key",
    "pack_tokens",
    "read_ids",
    "write_ids",
]

Ids: TypeAlias = "array[int] | list[int]"
"""Token ids as ``compact`` makes them."""

WIDE_MARKER = b"\xff"
_ENCODE = msgspec.msgpack.encode
_U32 = "I"
_U64 = "Q"
assert (array(_U32).itemsize, array(_U64).itemsize) == (4, 8), "array codes I and Q must be 4 and 8 bytes wide"


class TokenIdError(ValueError):
    """A token id that is negative or does not fit 64 bits."""


def namespace_key(*, lora_name: str | None = None, cache_salt: str | None = None) -> int:
    """Start of a chain: prompts of different namespaces never match, whatever their tokens.

    The model is no part of it: blocks are looked up per lane, and a lane serves one model.
    """
    if lora_name is None and cache_salt is None:
        return 0
    return xxh3_64_intdigest(_ENCODE((lora_name, cache_salt)))


def pack_tokens(tokens: Iterable[int]) -> bytes:
    """Bytes of one block as they are hashed: little-endian u32, or 0xff and u64 where an id needs more.

    Raises:
        TokenIdError: an id is negative or above 2**64-1.
    """
    try:
        return _little_endian(array(_U32, tokens))
    except OverflowError:
        return WIDE_MARKER + _pack_wide(tokens)


def _pack_wide(tokens: Iterable[int]) -> bytes:
    try:
        return _little_endian(array(_U64, tokens))
    except OverflowError:
        bad = next(token for token in tokens if not 0 <= token < 2**64)
        raise TokenIdError(f"token id {bad} is outside [0, 2**64)") from None


def _little_endian(ids: array[int]) -> bytes:
    if sys.byteorder == "big":
        ids.byteswap()
    return ids.tobytes()


def block_key(tokens: Iterable[int], *, parent: int) -> int:
    """Key of one block of token ids under its parent's key (or under a namespace key, for the first block)."""
    return xxh3_64_intdigest(pack_tokens(tokens), parent)


def extend_key(key: int, extra: object) -> int:
    """Key of a block that is more than its token ids, as a multimodal block is; ``extra`` is any msgpack value."""
    return xxh3_64_intdigest(_ENCODE(extra), key)


def read_ids(json: bytes, *, below: int) -> array[int] | None:
    """Compact ids out of a JSON array, without an object for each; None unless it holds some, all in [0, ``below``).

    None may also be the answer to ids in range that are written in an unusual way.
    """
    packed = keys_core.read_ids(json, below)
    return None if packed is None else array(_U32, packed)


def write_ids(tokens: Sequence[int]) -> bytes:
    """Ids as a JSON array; of compact ones without an object for each."""
    if isinstance(tokens, array) and tokens.typecode == _U32:
        return keys_core.write_ids(tokens)
    return msgspec.json.encode(list(tokens))


def compact(tokens: Sequence[int]) -> Ids:
    """Ids as u32 where all fit, so that every later slice and hash is a copy of memory; else a list.

    What is compact already is given back, not copied.

    Raises:
        TokenIdError: an id is negative or above 2**64-1.
    """
    if isinstance(tokens, array) and tokens.typecode == _U32:
        return tokens
    packed = keys_core.pack_list(tokens)
    if packed is not None:
        return array(_U32, packed)
    try:
        return array(_U32, tokens)
    except OverflowError:
        _pack_wide(tokens)  # raises for an id that no width can hold
        return list(tokens)


def block_keys(tokens: Sequence[int], *, width: int, parent: int = 0) -> array[int]:
    """Keys of all full blocks of ``width`` tokens, from the first token on. Cost: one pass over the ids.

    Raises:
        TokenIdError: an id is negative or above 2**64-1.
    """
    ids = compact(tokens)
    if isinstance(ids, array):
        return array(_U64, keys_core.chain(ids, width, parent))
    keys = array(_U64)
    for start in range(0, len(ids) - len(ids) % width, width):
        parent = block_key(ids[start : start + width], parent=parent)
        keys.append(parent)
    return keys
