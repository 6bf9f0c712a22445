"""A lane: one KV cache of one replica, its event stream, and everything the router keeps about it.

The lane outlives what is behind it: when an engine comes back as another process, or with another width or other ports,
its blocks and its subscription are made anew, while load and books go on, since requests may still run.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from contract.descriptor import LaneAddress
from router.choice.load import LaneLoad
from router.choice.memory import Memory
from router.choice.speed import ReplicaSpeed
from router.fleet.identity import Stream
from router.intake.index import BlockIndex, LaneHandle
from router.intake.stream_report import StreamState, StreamStatus
from router.intake.subscriber import SubscribeError, Subscriber
from router.prompt import Prompt
from router.proof.tally import LaneTally

__all__ = ["Lane", "Subscribe"]

JOIN_SECONDS = 10.0
Subscribe = Callable[[LaneAddress, str, LaneHandle], Subscriber]
"""Makes the subscriber, not yet started, of an address and a topic that feeds an index lane."""


class Lane:
    """One (replica, data-parallel rank). Block sizes are block widths in tokens."""

    def __init__(
        self,
        *,
        url: str,
        dp_rank: int,
        index: BlockIndex,
        speed: ReplicaSpeed,
        load: LaneLoad,
        recent: Memory,
        subscribe: Subscribe,
    ) -> None:
        self.url = url
        self.dp_rank = dp_rank
        self.speed = speed
        self.load = load
        self.recent = recent
        self.tally = LaneTally()
        self.stream: Stream | None = None
        self.no_events: str | None = None
        self.advertised_block_size: int | None = None
        self.handle = index.add_lane()
        self._index = index
        self._subscribe = subscribe
        self._subscriber: Subscriber | None = None
        self._connected_at = 0.0

    @property
    def status(self) -> StreamStatus | None:
        """How its event stream is doing; None without a stream."""
        return None if self._subscriber is None else self._subscriber.status

    @property
    def batches(self) -> int:
        """Event batches applied; cheaper than the whole status."""
        return 0 if self._subscriber is None else self._subscriber.batches

    @property
    def joining(self) -> bool:
        """Whether its stream is still catching up with what the engine held before, and may yet succeed."""
        status = self.status
        if status is None or time.monotonic() - self._connected_at > JOIN_SECONDS:
            return False
        return status.state in (StreamState.CONNECTING, StreamState.JOINING)

    @property
    def width(self) -> int | None:
        """The block width prompts are hashed at: as emitted, else as advertised; None until either is known."""
        return self._index.width(self.handle)

    @property
    def pairs(self) -> bool:
        """Whether its blocks hold pairs of neighbouring tokens."""
        return self._index.pairs(self.handle)

    @property
    def engines(self) -> int:
        """Engines that stood behind its stream before this one."""
        return self._index.engines(self.handle)

    def holds(self, prompt: Prompt) -> int:
        """Tokens of a prompt that the index holds for it now."""
        match = self._index.match(prompt, [self.handle]).get(self.handle)
        return 0 if match is None else match.tokens

    async def connect(self, stream: Stream | None, *, advertised_block_size: int | None) -> None:
        """Forget what the lane held and follow this stream from its beginning; None: it has no events."""
        await self.disconnect()
        self._index.remove_lane(self.handle)
        self.handle = self._index.add_lane(advertised_width=advertised_block_size)
        self.stream, self.advertised_block_size = stream, advertised_block_size
        self._connected_at = time.monotonic()
        if stream is not None:
            await self._follow(stream)

    async def _follow(self, stream: Stream) -> None:
        subscriber = self._subscribe(stream.address, stream.topic, self.handle)
        try:
            await subscriber.start()
        except SubscribeError as error:
            self.no_events = str(error)
        else:
            self._subscriber = subscriber

    async def disconnect(self) -> None:
        """Nobody is behind the lane: stop listening, and hold nothing of it."""
        subscriber, self._subscriber = self._subscriber, None
        if subscriber is not None:
            await subscriber.close()
        self.stream = self.no_events = None
        self._index.clear(self.handle)
        self.recent.clear()
        self.tally.restart()

    async def close(self) -> None:
        """The lane is no more."""
        await self.disconnect()
        self._index.remove_lane(self.handle)
