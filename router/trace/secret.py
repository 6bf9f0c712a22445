"""A random key, and what stands in for ids, hashes and texts under it: equal for equal, and no way back without it.

The key is made for one redaction and kept nowhere.
"""

from __future__ import annotations

import hashlib
import secrets
from array import array
from collections.abc import Sequence

from contract.events import BlockHash

__all__ = ["Secret"]

_KEY_BYTES = 32
_ID_BITS = 2**31 - 1
"""Engines' vocabularies are smaller, and every reader takes ids of so many bits."""


class Secret:
    """One key. ``key`` is given in tests only."""

    def __init__(self, key: bytes | None = None) -> None:
        self._key = secrets.token_bytes(_KEY_BYTES) if key is None else key

    def name(self, raw: BlockHash) -> BlockHash:
        """For an engine's name of a block, another of its kind: bytes as long, or an int that fits 63 bits."""
        if isinstance(raw, int):
            return int.from_bytes(self._digest(b"name", raw.to_bytes(8, "little"), 8), "little") >> 1
        return self._digest(b"name", raw, min(len(raw), hashlib.blake2b.MAX_DIGEST_SIZE)) if raw else raw

    def text(self, raw: str) -> str:
        """For a text that says who asked."""
        return self._digest(b"text", raw.encode(errors="replace"), 8).hex()

    def no_batch(self, payload: bytes) -> bytes:
        """For a payload that nobody can read, another one: no msgpack begins with 0xc1."""
        return b"\xc1" + self._digest(b"payload", payload, 16)

    def block_ids(self, keys: Sequence[int], *, units: int) -> array[int]:
        """For blocks, by their keys in the index, ids: ``units`` of each, of which the first two tell blocks apart.

        A key stands for a whole prefix, so that equal ids in unequal prefixes become unequal: nobody can count how
        often an id was used. The other ids are 0, which costs a trace the least.
        """
        ids = array("I", bytes(4 * units * len(keys)))
        for block, key in enumerate(keys):
            digest = int.from_bytes(self._digest(b"block", key.to_bytes(8, "little"), 8), "little")
            ids[block * units] = digest & _ID_BITS
            if units > 1:
                ids[block * units + 1] = (digest >> 32) & _ID_BITS
        return ids

    def _digest(self, what: bytes, raw: bytes, size: int) -> bytes:
        return hashlib.blake2b(raw, digest_size=size, key=self._key, person=what).digest()
