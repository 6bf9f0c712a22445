"""What a lane tells of itself: its blocks, its sizes and counts, and the bounds it keeps. Values only."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from contract.events import BlockHash

__all__ = ["BlockRow", "LaneLimits", "LaneStats"]


class LaneLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds on what a lane remembers beyond the blocks that its engine holds, in blocks."""

    orphans: int = 16_384
    departed: int = 8_192


class BlockRow(msgspec.Struct, frozen=True):
    """One block that the engine holds; ``group`` is None where the stream has no groups."""

    hash: BlockHash
    tier: str
    group: int | None
    copies: int


class LaneStats(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes and counts of one lane. ``unusable`` counts by reason the stores that gave blocks but no keys."""

    blocks: dict[str, int]
    advertised_width: int | None
    emitted_width: int | None
    widths_seen: Sequence[int]
    pairs: bool
    orphans: int
    orphans_dropped: int
    unkeyed: int
    unknown_removals: int
    rejected_events: int
    last_rejection: str | None
    unusable: dict[str, int]
