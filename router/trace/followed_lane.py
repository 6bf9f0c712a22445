"""A lane's stream and its blocks in an index, joined without sockets: what the stream orders is done at once.

A replay that a stream asks for is nobody's here: its answers are in the recording, or there are none.
"""

from __future__ import annotations

from collections.abc import Iterable

from router.intake.index import BlockIndex, LaneHandle
from router.intake.stream import Action, Apply, Clear, LaneStream

__all__ = ["FollowedLane"]


class FollowedLane:
    """One stream, followed from its beginning. ``block_size`` is the advertised block width; None: not said."""

    def __init__(self, index: BlockIndex, *, can_replay: bool, block_size: int | None) -> None:
        self.stream = LaneStream(can_replay=can_replay)
        self.handle: LaneHandle = index.add_lane(advertised_width=block_size)
        self._index = index

    def perform(self, actions: Iterable[Action]) -> None:
        """Carry out what the stream ordered."""
        for action in actions:
            match action:
                case Apply(batch):
                    self._index.apply(self.handle, batch)
                case Clear():
                    self._index.clear(self.handle)

    def leave(self) -> None:
        """Nobody is behind the lane: nothing is held of it."""
        self._index.clear(self.handle)

    def close(self) -> None:
        """The lane is no more."""
        self._index.remove_lane(self.handle)
