"""What a mock worker holds: a prefix cache that tells of itself as a real engine does, and computes nothing. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from contract.events import AllBlocksCleared, BlockStored, Event
from contract.hashing import block_keys, namespace_key

__all__ = ["PrefixCache", "Taken"]

BLOCK_WIDTH = 16
MAX_BLOCKS = 1_000_000
# The worker's names for blocks are its own, as engines' are: equal to nobody's keys.
_ROOT = namespace_key(cache_salt="mock worker")


class Taken(msgspec.Struct, frozen=True):
    """A prompt that went through the cache: what was found, and what there is to tell."""

    cached_tokens: int
    events: Sequence[Event]


class PrefixCache:
    """Blocks by name. Full, it starts anew, which it tells as well."""

    def __init__(self) -> None:
        self._held: set[int] = set()

    def take(self, ids: Sequence[int]) -> Taken:
        """Look a prompt up and store its full blocks. The last token is always computed, as engines do."""
        names = block_keys(ids, width=BLOCK_WIDTH, parent=_ROOT)
        events: list[Event] = []
        if len(self._held) + len(names) > MAX_BLOCKS:
            events += self.clear()
        known = next((index for index, name in enumerate(names) if name not in self._held), len(names))
        self._held.update(names[known:])
        events += _stored(ids, names, known)
        return Taken(BLOCK_WIDTH * min(known, (len(ids) - 1) // BLOCK_WIDTH), events)

    def clear(self) -> Sequence[Event]:
        """Drop everything."""
        self._held.clear()
        return [AllBlocksCleared()]


def _stored(ids: Sequence[int], names: Sequence[int], known: int) -> list[BlockStored]:
    if known == len(names):
        return []
    stored = BlockStored(
        block_hashes=names[known:],
        parent_block_hash=names[known - 1] if known else None,
        token_ids=ids[known * BLOCK_WIDTH : len(names) * BLOCK_WIDTH],
        block_size=BLOCK_WIDTH,
        medium="GPU",
        group_idx=0,
        kv_cache_spec_kind="full_attention",
    )
    return [stored]
