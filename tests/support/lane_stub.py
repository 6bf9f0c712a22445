"""A lane without an engine, for tests of the choice: index, books and memory behind it are the real ones."""

from __future__ import annotations

from collections.abc import Sequence

from fake_engine import stored

from contract.events import EventBatch
from router.choice.load import LaneLoad
from router.choice.policy import memory_of
from router.choice.speed import ReplicaSpeed
from router.intake.index import BlockIndex

__all__ = ["LaneStub"]


class LaneStub:
    """The only lane of its replica, with blocks of ``width`` tokens."""

    def __init__(self, number: int, index: BlockIndex, speed: ReplicaSpeed, *, width: int, policy: str = "kv") -> None:
        self.url = f"http://replica-{number}"
        self.dp_rank = 0
        self.load = LaneLoad()
        self.recent = memory_of(policy)
        self.speed = speed
        self.handle = index.add_lane(advertised_width=width)
        self.width: int | None = width
        self._index = index
        self._block = width

    def store(self, prompt: Sequence[int]) -> None:
        """The lane's engine announces the prompt's full blocks."""
        self._index.apply(self.handle, EventBatch(ts=0.0, events=[stored(prompt, width=self._block)]))
