"""A lane's stream and its blocks in an index, joined without sockets: what the stream orders is done at once.

A replay that a stream asks for is nobody's here: its answers are in the recording, or there are none.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from contract.events import AllBlocksCleared, BlockRemoved, BlockStored, EventBatch
from router.intake.index import BlockIndex, LaneHandle
from router.intake.stream import Action, Apply, Clear, LaneStream

__all__ = ["EventCounts", "FollowedLane"]


class EventCounts(msgspec.Struct, kw_only=True):
    """What batches that were applied said: blocks stored and removed, and the caches that were cleared."""

    events: int = 0
    stored: int = 0
    removed: int = 0
    cleared: int = 0

    def add(self, batch: EventBatch) -> None:
        """Count one more batch."""
        self.events += len(batch.events)
        for event in batch.events:
            match event:
                case BlockStored():
                    self.stored += len(event.block_hashes)
                case BlockRemoved():
                    self.removed += len(event.block_hashes)
                case AllBlocksCleared():
                    self.cleared += 1


class FollowedLane:
    """One stream, followed from its beginning. ``block_size`` is the advertised block width; None: not said.

    ``counts`` goes on with those of an earlier stream, where they are given; ``stream`` stands in for a new one.
    """

    def __init__(
        self,
        index: BlockIndex,
        *,
        can_replay: bool,
        block_size: int | None,
        counts: EventCounts | None = None,
        stream: LaneStream | None = None,
    ) -> None:
        self.counts = counts or EventCounts()
        self.stream = stream or LaneStream(can_replay=can_replay)
        self.handle: LaneHandle = index.add_lane(advertised_width=block_size)
        self._index = index

    def perform(self, actions: Iterable[Action]) -> None:
        """Carry out what the stream ordered."""
        for action in actions:
            match action:
                case Apply(batch):
                    self._index.apply(self.handle, batch)
                    self.counts.add(batch)
                case Clear():
                    self._index.clear(self.handle)

    def leave(self) -> None:
        """Nobody is behind the lane: nothing is held of it."""
        self._index.clear(self.handle)

    def close(self) -> None:
        """The lane is no more."""
        self._index.remove_lane(self.handle)
