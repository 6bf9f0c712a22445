"""The index: which lane holds how much of a prompt.

Lanes come and go; each applies its own events (``lane``), and all share one map from key to lanes (``holders``). A
look-up hashes the prompt once for each distinct width among the lanes asked about, and only as far as one of them still
matches; its cost follows the prompt's keys and the places at which lanes drop out, not the number of lanes. Nothing
here reads a clock or a socket.

Answers are counted in tokens, never in blocks, since widths differ between lanes. In pair mode (SGLang's EAGLE trees) a
block of ``width`` pairs counts as ``width`` tokens.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

from contract.events import AllBlocksCleared, BlockRemoved, BlockStored, Event, EventBatch, Rejected
from contract.hashing import TokenIdError
from router.intake.first_blocks import FirstBlocks
from router.intake.holders import Holders
from router.intake.holding import NO_MATCH, Holding, Match
from router.intake.lane import LaneBlocks
from router.intake.lane_report import BlockRow, LaneLimits, LaneStats
from router.intake.width import Shape
from router.prompt import BlockKeys, Prompt

__all__ = [
    "EVERYONE",
    "NO_MATCH",
    "BlockIndex",
    "BlockRow",
    "Holding",
    "LaneHandle",
    "LaneLimits",
    "LaneStats",
    "Match",
]

LaneHandle = int


EVERYONE = -1
"""As a mask of lanes."""


class BlockIndex:
    """Blocks of many lanes. Methods raise KeyError for a handle that was never given out or was removed."""

    def __init__(self, *, limits: LaneLimits | None = None) -> None:
        self._limits = limits or LaneLimits()
        self._holders = Holders()
        self._lanes: dict[LaneHandle, LaneBlocks] = {}
        self._by_place: dict[int, LaneHandle] = {}
        self._everyone = 0
        self._shapes: dict[Shape, int] = {}
        self._handles = itertools.count(1)

    def add_lane(self, *, advertised_width: int | None = None) -> LaneHandle:
        """A new, empty lane; handles are never used twice, so a late event cannot fill somebody else's lane."""
        bit = ~self._everyone & (self._everyone + 1)  # the lowest that is free
        handle = next(self._handles)
        lane = LaneBlocks(bit=bit, holders=self._holders, advertised_width=advertised_width, limits=self._limits)
        self._lanes[handle] = lane
        self._by_place[bit.bit_length()] = handle
        self._everyone |= bit
        self._enter(lane)
        return handle

    def remove_lane(self, handle: LaneHandle) -> None:
        """Drop a lane and everything it holds; the cost is that of its blocks."""
        lane = self._lanes.pop(handle)
        self._leave(lane, lane.width.shape)
        lane.forget()
        del self._by_place[lane.claims.bit.bit_length()]
        self._everyone ^= lane.claims.bit

    def clear(self, handle: LaneHandle) -> None:
        """Empty a lane behind which another engine may stand now; its width is again the advertised one."""
        lane = self._lanes[handle]
        self._leave(lane, lane.width.shape)
        lane.forget()
        self._enter(lane)

    def apply(self, handle: LaneHandle, batch: EventBatch) -> None:
        """Apply the events of a batch in order; one that cannot be used is counted and skipped."""
        lane = self._lanes[handle]
        before = lane.width.shape
        for event in batch.events:
            try:
                _apply(lane, event)
            except TokenIdError as error:
                lane.reject(str(error))
        if lane.width.shape != before:
            self._leave(lane, before)
            self._enter(lane)

    def width(self, handle: LaneHandle) -> int | None:
        """Tokens per block as the events say; until the first of them, as advertised; None if the lane is gone."""
        lane = self._lanes.get(handle)
        return None if lane is None else lane.width.current

    def pairs(self, handle: LaneHandle) -> bool:
        """Whether the lane's blocks hold pairs of neighbouring tokens, as far as its events say; not if it is gone."""
        lane = self._lanes.get(handle)
        return lane is not None and lane.width.pairs

    def holdings(self, prompt: Prompt, *, asked: int = EVERYONE) -> list[Holding]:
        """What lanes hold of the prompt, each lane once; those that hold nothing of it cost nothing.

        ``asked``: the lanes that anybody wants to know of, as a mask of their bits.
        """
        return [
            Holding(lanes, tokens=depth * width, blocks=depth, keys=keys)
            for (width, pairs), mask in self._shapes.items()
            if mask & asked
            for keys in (prompt.keys(width=width, pairs=pairs),)
            for lanes, depth in self._drops(keys, mask & asked)
        ]

    def match(self, prompt: Prompt, lanes: Iterable[LaneHandle]) -> dict[LaneHandle, Match]:
        """What each lane holds of the prompt. A lane that is gone by now is left out."""
        found = {handle: NO_MATCH for handle in lanes if handle in self._lanes}
        for holding in self.holdings(prompt, asked=sum(self._lanes[handle].claims.bit for handle in found)):
            found.update(self._matches(holding))
        return found

    def holders(self, prompt: Prompt) -> dict[LaneHandle, Match]:
        """What lanes hold of the prompt, those left out that hold nothing of it."""
        return {handle: match for holding in self.holdings(prompt) for handle, match in self._matches(holding)}

    def held(self, handle: LaneHandle, holdings: Iterable[Holding]) -> Match:
        """What one lane holds, by the answer for all; nothing if the lane is gone."""
        lane = self._lanes.get(handle)
        if lane is not None:
            bit = lane.claims.bit
            for holding in holdings:
                if holding.lanes & bit:
                    return holding.of(lane)
        return NO_MATCH

    def bit(self, handle: LaneHandle) -> int:
        """The lane's bit in masks; 0 for a lane that is gone."""
        lane = self._lanes.get(handle)
        return 0 if lane is None else lane.claims.bit

    def count(self, mask: int) -> int:
        """How many lanes a mask has."""
        return (mask & self._everyone).bit_count()

    def lanes_of(self, mask: int) -> Iterator[LaneHandle]:
        """The lanes of a mask, those of no lane left out; the cost is that of its bits."""
        mask &= self._everyone
        words = mask.to_bytes(-(-mask.bit_length() // 64) * 8, "little")
        for place, word in enumerate(memoryview(words).cast("Q")):  # small numbers: a mask may have a thousand bits
            while word:
                bit = word & -word
                yield self._by_place[64 * place + bit.bit_length()]
                word ^= bit

    def holds(self, handle: LaneHandle, key: int) -> bool:
        """Whether a lane holds a block of this key, wherever it stands; not if the lane is gone."""
        lane = self._lanes.get(handle)
        return lane is not None and bool(self._holders.run([key], 0)[1] & lane.claims.bit)

    def gpu_tokens(self, handle: LaneHandle) -> int:
        """Tokens that a lane holds on its GPU; none if the lane is gone."""
        lane = self._lanes.get(handle)
        return 0 if lane is None else lane.gpu_blocks * (lane.width.current or 0)

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
        places = {lane.claims.bit.bit_length(): handle for handle, lane in self._lanes.items()}
        assert self._by_place == places, "bits of lanes"
        shapes: dict[Shape, int] = {}
        for lane in self._lanes.values():
            if lane.width.shape is not None:
                shapes[lane.width.shape] = shapes.get(lane.width.shape, 0) | lane.claims.bit
        assert self._shapes == shapes, "lanes by width"
        self._holders.check_invariants()
        assert self._everyone == sum(lane.claims.bit for lane in self._lanes.values()), "the bits of all lanes"
        assert not any(mask & ~self._everyone for mask in self._holders.masks().values()), "a mask names no lane"
        for lane in self._lanes.values():
            lane.check_invariants()

    def _drops(self, keys: BlockKeys, alive: int) -> Iterator[tuple[int, int]]:
        """Lanes, as a mask, that match no further, and the blocks that they do match, unless these are none."""
        depth = 0
        for chunk in keys.chunks():
            place = 0
            while place < len(chunk):
                end, holders = self._holders.run(chunk, place)
                still = alive & holders
                if still != alive and depth + place:
                    yield alive ^ still, depth + place
                if not still:
                    return
                alive, place = still, end
            depth += place
        if depth:
            yield alive, depth

    def _matches(self, holding: Holding) -> Iterator[tuple[LaneHandle, Match]]:
        """By lane."""
        return ((handle, holding.of(self._lanes[handle])) for handle in self.lanes_of(holding.lanes))

    def _enter(self, lane: LaneBlocks) -> None:
        """Count a lane among those of its width and mode; one whose width nobody knows matches nothing."""
        shape = lane.width.shape
        if shape is not None:
            self._shapes[shape] = self._shapes.get(shape, 0) | lane.claims.bit

    def _leave(self, lane: LaneBlocks, shape: Shape | None) -> None:
        if shape is not None:
            self._shapes[shape] ^= lane.claims.bit
            if not self._shapes[shape]:
                del self._shapes[shape]


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
