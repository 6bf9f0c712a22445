"""A real subscriber that fills a lane of an index of its own, and what a test may ask of the two."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from event_source import EventSource, Replies, holds_the_truth
from patience import in_time, until

from contract.descriptor import LaneAddress
from contract.events import BlockRemoved
from router.intake.index import BlockIndex, LaneHandle, LaneLimits
from router.intake.stream_report import StreamState, SubscriberStatus
from router.intake.subscriber import Subscriber, SubscriberLimits
from router.prompt import Prompt

QUICK = SubscriberLimits(reply_deadline=0.3, attempts=2, backoff=0.01, settle=0.05, recover=0.2)


class Follower:
    """A subscriber and the lane that it fills."""

    def __init__(self, subscriber: Subscriber, index: BlockIndex, handle: LaneHandle) -> None:
        self.subscriber, self.index, self.handle = subscriber, index, handle

    @property
    def status(self) -> SubscriberStatus:
        return self.subscriber.status

    @property
    def state(self) -> StreamState:
        return self.status.state

    @property
    def names(self) -> set[object]:
        return {row.hash for row in self.index.blocks(self.handle)}

    def matched(self, tokens: list[int]) -> int:
        return self.index.match(Prompt(tokens), [self.handle])[self.handle].tokens

    async def agrees_with(self, source: EventSource) -> None:
        await until(
            lambda: holds_the_truth(self.index, self.handle, source) and self.status.last_seq == source.last_seq,
            f"the index holds {source.held}: has {self.names}, {self.status}",
        )

    async def until_state(self, state: StreamState) -> None:
        await until(lambda: self.state is state, f"the stream is {state}: {self.status}")


@asynccontextmanager
async def following(
    endpoint: str,
    replay_endpoint: str | None,
    *,
    topic: str = "",
    limits: SubscriberLimits = QUICK,
    lane_limits: LaneLimits | None = None,
) -> AsyncIterator[Follower]:
    index = BlockIndex(limits=lane_limits)
    handle = index.add_lane()
    subscriber = Subscriber(
        address=LaneAddress(0, endpoint, replay_endpoint), topic=topic, index=index, handle=handle, limits=limits
    )
    await subscriber.start()
    try:
        yield Follower(subscriber, index, handle)
    finally:
        await in_time(subscriber.close())
        index.check_invariants()


@asynccontextmanager
async def pair(
    *, topic: str = "", replies: Replies = "four frames", replay: bool = True
) -> AsyncIterator[tuple[EventSource, Follower]]:
    """An engine, and a follower whose subscription is known to be in effect."""
    async with (
        EventSource(topic=topic, replies=replies, replay=replay) as source,
        following(source.endpoint, source.replay_endpoint, topic=topic) as follower,
    ):
        await in_effect(source, follower)
        yield source, follower


async def in_effect(source: EventSource, follower: Follower) -> None:
    """Publish what changes nothing until a live batch has come."""
    while follower.status.last_event_time is None:
        await source.publish(BlockRemoved(block_hashes=[0], medium="GPU"))
        await asyncio.sleep(0.01)
    await until(lambda: follower.state in (StreamState.LIVE, StreamState.UNTRUSTED), "it has joined")
