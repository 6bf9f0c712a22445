"""The index: which lane holds how much of a prompt.

Lanes come and go; each applies its own events (``lane``), and all share one map from key to lanes (``holders``). A
look-up hashes the prompt once for each distinct width among the lanes asked about, and only as far as one of them still
matches. Nothing here reads a clock or a socket.

Answers are counted in tokens, never in blocks, since widths differ between lanes. In pair mode (SGLang's EAGLE trees) a
block of ``width`` pairs counts as ``width`` tokens.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import msgspec

from contract.events import AllBlocksCleared, BlockRemoved, BlockStored, Event, EventBatch, Rejected
from contract.hashing import TokenIdError
from router.intake.first_blocks import FirstBlocks
from router.intake.holders import Holders
from router.intake.lane import LaneBlocks
from router.intake.lane_report import BlockRow, LaneLimits, LaneStats
from router.prompt import Prompt

__all__ = ["BlockIndex", "BlockRow", "LaneHandle", "LaneLimits", "LaneStats", "Match"]

LaneHandle = int


class Match(msgspec.Struct, frozen=True):
    """How much of a prompt a lane holds, from its first token on without a hole.

    ``tiers`` splits ``tokens`` by the fastest tier that each block is in.
    """

    tokens: int
    tiers: dict[str, int]


_NO_MATCH = Match(0, {})
_Shape = tuple[int, bool]


class BlockIndex:
    """Blocks of many lanes. Methods raise KeyError for a handle that was never given out or was removed."""

    def __init__(self, *, limits: LaneLimits | None = None) -> None:
        self._limits = limits or LaneLimits()
        self._holders = Holders()
        self._lanes: dict[LaneHandle, LaneBlocks] = {}
        self._bits: set[int] = set()
        self._handles = itertools.count(1)

    def add_lane(self, *, advertised_width: int | None = None) -> LaneHandle:
        """A new, empty lane; handles are never used twice, so a late event cannot fill somebody else's lane."""
        bit = next(bit for bit in (1 << place for place in itertools.count()) if bit not in self._bits)
        self._bits.add(bit)
        handle = next(self._handles)
        self._lanes[handle] = LaneBlocks(
            bit=bit, holders=self._holders, advertised_width=advertised_width, limits=self._limits
        )
        return handle

    def remove_lane(self, handle: LaneHandle) -> None:
        """Drop a lane and everything it holds; the cost is that of its blocks."""
        lane = self._lanes.pop(handle)
        lane.forget()
        self._bits.discard(lane.claims.bit)

    def clear(self, handle: LaneHandle) -> None:
        """Empty a lane behind which another engine may stand now; its width is again the advertised one."""
        self._lanes[handle].forget()

    def apply(self, handle: LaneHandle, batch: EventBatch) -> None:
        """Apply the events of a batch in order; one that cannot be used is counted and skipped."""
        lane = self._lanes[handle]
        for event in batch.events:
            try:
                _apply(lane, event)
            except TokenIdError as error:
                lane.reject(str(error))

    def width(self, handle: LaneHandle) -> int | None:
        """Tokens per block as the events say; until the first of them, as advertised."""
        return self._lanes[handle].width.current

    def pairs(self, handle: LaneHandle) -> bool:
        """Whether the lane's blocks hold pairs of neighbouring tokens, as far as its events say; not if it is gone."""
        lane = self._lanes.get(handle)
        return lane is not None and lane.width.pairs

    def match(self, prompt: Prompt, lanes: Iterable[LaneHandle]) -> dict[LaneHandle, Match]:
        """What each lane holds of the prompt. A lane that is gone by now is left out."""
        found: dict[LaneHandle, Match] = {}
        for (width, pairs), group in self._by_shape(lanes, found).items():
            depths = self._depths(prompt, width=width, pairs=pairs, lanes=group)
            for bit, (handle, lane) in group.items():
                blocks = depths[bit]
                tiers = lane.claims.tiers(prompt.keys(width=width, pairs=pairs), blocks)
                found[handle] = Match(blocks * width, {tier: count * width for tier, count in tiers.items()})
        return found

    def blocks(self, handle: LaneHandle) -> list[BlockRow]:
        """Every block that the lane's engine holds, as far as its events tell, in no order."""
        return self._lanes[handle].rows()

    def first_blocks(self, handle: LaneHandle) -> FirstBlocks:
        """How the prompts begin that the lane's events told of lately."""
        return self._lanes[handle].first_blocks

    def engines(self, handle: LaneHandle) -> int:
        """Engines that stood behind the lane before this one; 0 for a lane that is gone."""
        lane = self._lanes.get(handle)
        return 0 if lane is None else lane.first_blocks.engines

    def stats(self, handle: LaneHandle) -> LaneStats:
        """Sizes and counts of a lane."""
        return self._lanes[handle].stats()

    def __len__(self) -> int:
        """Distinct keys held by any lane."""
        return len(self._holders)

    def check_invariants(self) -> None:
        """Raise AssertionError unless all parts agree with each other."""
        assert self._bits == {lane.claims.bit for lane in self._lanes.values()}, "bits are not those of the lanes"
        everyone = sum(self._bits)
        assert all(mask and not mask & ~everyone for mask in self._holders.masks.values()), "a mask names no lane"
        for lane in self._lanes.values():
            lane.check_invariants()

    def _by_shape(
        self, handles: Iterable[LaneHandle], found: dict[LaneHandle, Match]
    ) -> dict[_Shape, dict[int, tuple[LaneHandle, LaneBlocks]]]:
        """Lanes by width and mode, keyed by their bits; one whose width nobody knows has matched nothing."""
        shapes: dict[_Shape, dict[int, tuple[LaneHandle, LaneBlocks]]] = {}
        for handle in handles:
            lane = self._lanes.get(handle)
            if lane is None:
                continue
            width = lane.width.current
            if width:
                shapes.setdefault((width, lane.width.pairs), {})[lane.claims.bit] = (handle, lane)
            else:
                found[handle] = _NO_MATCH
        return shapes

    def _depths(self, prompt: Prompt, *, width: int, pairs: bool, lanes: Iterable[int]) -> dict[int, int]:
        """Blocks matched by each lane, by bit: one step per block for all lanes, and one per lane that drops out."""
        depths = dict.fromkeys(lanes, 0)
        alive = sum(depths)
        masks = self._holders.masks
        keys = prompt.keys(width=width, pairs=pairs)
        depth = 0
        for key in keys:
            still = alive & masks.get(key, 0)
            if still != alive:
                _note(depths, alive ^ still, depth)
                if not still:
                    return depths
                alive = still
            depth += 1
        _note(depths, alive, depth)
        return depths


def _note(depths: dict[int, int], dropped: int, depth: int) -> None:
    while dropped:
        bit = dropped & -dropped
        depths[bit] = depth
        dropped ^= bit


def _apply(lane: LaneBlocks, event: Event | Rejected) -> None:
    match event:
        case BlockStored():
            lane.store(event)
        case BlockRemoved():
            lane.remove(event)
        case AllBlocksCleared():
            lane.clear()
        case Rejected():
            lane.reject(event.reason)
