"""What a KV event says, whichever engine said it.

These are the project's own values, free of any dialect: hashes are one identity however they were sent, token ids are
flat, absent fields are ``None``. ``decode`` turns wire bytes into them, ``encode`` the reverse.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence

import msgspec

__all__ = [
    "AllBlocksCleared",
    "BlockHash",
    "BlockRemoved",
    "BlockStored",
    "Dialect",
    "Event",
    "EventBatch",
    "Rejected",
    "Tier",
    "normalize_hash",
    "tier_of",
]

BlockHash = int | bytes
"""An engine's own name for a block: an unsigned 64-bit int, or raw digest bytes. Opaque."""

_U64_MASK = 2**64 - 1


def normalize_hash(raw: BlockHash) -> BlockHash:
    """One identity for a hash that one event sent signed and another unsigned; bytes stay as they are."""
    return raw & _U64_MASK if isinstance(raw, int) else raw


class Dialect(enum.StrEnum):
    """Whose wire an encoder speaks."""

    SGLANG = "sglang"
    VLLM = "vllm"


class Tier(enum.StrEnum):
    """Where a block lives. Values are the names shown to users."""

    GPU = "GPU"
    CPU = "CPU"
    DISK = "DISK"
    EXTERNAL = "EXTERNAL"


_TIER_BY_MEDIUM = {
    "gpu": Tier.GPU,
    "cpu": Tier.CPU,
    "cpu_pinned": Tier.CPU,
    "disk": Tier.DISK,
    "storage": Tier.DISK,
    "external": Tier.EXTERNAL,
}


def tier_of(medium: str | None) -> str | None:
    """Tier named by an event's ``medium``: any case, SGLang 0.5.23's and vLLM 0.33.0's spellings.

    A medium nobody knows is a tier of its own, under the name it came with. ``None`` stays ``None``: an old engine,
    whose stores mean the GPU and whose removals mean every tier.
    """
    if medium is None:
        return None
    return _TIER_BY_MEDIUM.get(medium.lower(), medium)


class BlockStored(msgspec.Struct, frozen=True, kw_only=True):
    """Blocks that an engine now holds, in chain order.

    ``token_ids`` covers ``block_size`` ids a block (in pair mode, ``block_size`` pairs: ``token_ids`` then holds the
    pairs, flattened, and ``pairs`` is true). ``len(block_hashes) * block_size`` ids is the *dense* case; fewer hashes
    than that is legal (vLLM's sliding-window and Mamba groups) and then says nothing about which chunk is which.
    """

    block_hashes: Sequence[BlockHash]
    parent_block_hash: BlockHash | None
    token_ids: Sequence[int]
    block_size: int
    medium: str | None = None
    lora_id: int | None = None
    lora_name: str | None = None
    cache_salt: str | None = None
    session_id: str | None = None
    extra_keys: Sequence[Sequence[object] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None
    locality: str | None = None
    ownership: str | None = None
    lookahead_token_ids: Sequence[Sequence[int]] | None = None
    pairs: bool = False

    @property
    def units_per_block(self) -> int:
        """Entries of ``token_ids`` that one block takes."""
        return self.block_size * 2 if self.pairs else self.block_size

    @property
    def dense(self) -> bool:
        """Every block's tokens are known: one chunk of ``token_ids`` for each hash, in order."""
        size = self.block_size
        return size > 0 and len(self.token_ids) == len(self.block_hashes) * (2 * size if self.pairs else size)


class BlockRemoved(msgspec.Struct, frozen=True, kw_only=True):
    """Blocks of which the engine dropped one copy each, in the given tier (every tier where ``medium`` is None)."""

    block_hashes: Sequence[BlockHash]
    medium: str | None = None
    group_idx: int | None = None
    locality: str | None = None
    ownership: str | None = None


class AllBlocksCleared(msgspec.Struct, frozen=True):
    """The engine dropped everything it held."""


Event = BlockStored | BlockRemoved | AllBlocksCleared


class Rejected(msgspec.Struct, frozen=True):
    """An event of a batch that could not be used; the rest of the batch could."""

    reason: str


class EventBatch(msgspec.Struct, frozen=True, kw_only=True):
    """Events of one engine step, in the order in which they happened."""

    ts: float
    events: Sequence[Event | Rejected]
    dp_rank: int | None = None
