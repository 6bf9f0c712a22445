"""The rows of the fault list about limits of the stream: full queues, deaf peers, memory."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import zmq
from command import serving_process
from event_source import WIDTH, stored
from fake_engine import FakeEngine
from follower import following
from patience import until
from publisher_peers import published
from router_stage import RouterClient, Stage

from contract.events import BlockRemoved, BlockStored, Event
from publisher import EventPublisher
from router.intake.stream_report import StreamState


@pytest.mark.fault("S15")
async def test_a_full_queue_never_blocks_the_engine_and_the_gap_is_filled() -> None:
    """An engine publishes faster than is sent, past a queue of 2: it never waits; the gap is seen and replayed."""
    with published(max_queue_size=2) as publisher:
        async with following(publisher.endpoint, publisher.replay_endpoint) as follower:
            await until(lambda: follower.state is StreamState.LIVE, "it has joined")
            held = await asyncio.to_thread(_publish_until_skipped, publisher)
            await until(lambda: follower.status.last_seq == publisher.last_seq, "every batch has come")
            assert follower.names == held
            assert (follower.status.lost, follower.state) == (0, StreamState.LIVE)
            assert follower.status.gaps > 0


def _publish_until_skipped(publisher: EventPublisher) -> set[object]:
    """What the engine holds then."""
    held: set[object] = set()
    slowest = 0.0
    while publisher.counters.skipped < 20 or len(held) < 500:
        assert len(held) < 200_000, "the sender keeps up"
        began = time.perf_counter()
        publisher.publish([stored(len(held) + 1)])
        slowest = max(slowest, time.perf_counter() - began)
        held.add(len(held) + 1)
    print(f"{len(held)} batches, {publisher.counters.skipped} left out, slowest call {slowest * 1e3:.1f} ms")
    return held


@pytest.mark.fault("S15")
async def test_a_subscriber_that_does_not_read_costs_nobody_else() -> None:
    """A subscriber stops reading, with a high-water mark of 10: the engine goes on, another one misses nothing."""
    context = zmq.Context()
    deaf = context.socket(zmq.SUB)
    try:
        with published(hwm=10) as publisher:
            deaf.rcvhwm = 1
            deaf.subscribe(b"")
            deaf.connect(publisher.endpoint)
            async with following(publisher.endpoint, publisher.replay_endpoint) as follower:
                await until(lambda: follower.state is StreamState.LIVE, "it has joined")
                for name in range(1, 3_001):
                    publisher.publish([stored(name)])
                    if name % 100 == 0:
                        await asyncio.sleep(0)
                await until(lambda: follower.status.last_seq == publisher.last_seq, "every batch has come")
                assert len(follower.names) == 3_000
                assert follower.status.lost == 0
    finally:
        deaf.close(linger=0)
        context.destroy(linger=0)


PREFIX = tuple(range(1, 5))
DEPTH = 3
"""Blocks of each chain below the shared prefix."""


def shared_prefix() -> BlockStored:
    return chain(0, names=PREFIX, parent=None)


def chain(number: int, *, names: tuple[int, ...], parent: int | None) -> BlockStored:
    ids = [(number + name) % 2**31 for name in names for _ in range(WIDTH)]
    return BlockStored(block_hashes=names, parent_block_hash=parent, token_ids=ids, block_size=WIDTH, medium="GPU")


def chains(start: int, count: int) -> list[Event]:
    """Chains that nobody had before, under the prefix; each stored and then removed, tail first."""
    events: list[Event] = []
    for number in range(start, start + count):
        names = tuple(10 + number * DEPTH + place for place in range(DEPTH))
        events.append(chain(number, names=names, parent=PREFIX[-1]))
        events.append(BlockRemoved(block_hashes=names[::-1], medium="GPU"))
    return events


def resident(pid: int) -> float:
    """Resident memory of a process, in MiB."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


@pytest.mark.fault("S16")
async def test_what_came_and_went_leaves_nothing_behind() -> None:
    """20,000 unique chains are stored and removed under one prefix: the prefix is all that is left of them."""
    with published(buffer_steps=20) as publisher:
        async with following(publisher.endpoint, publisher.replay_endpoint) as follower:
            publisher.publish([shared_prefix()])
            memory = []
            for half in range(2):
                for batch in range(half * 100, half * 100 + 100):
                    publisher.publish(chains(batch * 100, 100))
                    await until(lambda: follower.status.last_seq == publisher.last_seq, "the batch has come")
                memory.append(round(resident(os.getpid()), 1))
                assert follower.names == set(PREFIX)
                assert len(follower.index) == len(PREFIX)
                follower.index.check_invariants()  # which holds what is remembered of departed blocks to its bound
    print(f"resident {memory} MiB after each 10,000 chains")
    assert memory[1] - memory[0] < 16


@pytest.mark.soak
@pytest.mark.timeout(400)
@pytest.mark.fault("S16")
async def test_a_million_chains_leave_memory_level(stage: Stage) -> None:
    """A million unique chains are stored and removed under one prefix: the router's resident memory levels off."""
    engine = FakeEngine(width=WIDTH)
    engine.publish_on(buffer_steps=200)
    await stage.engine(engine)
    engine.publish(shared_prefix())
    async with serving_process("--replica", engine.url) as (url, pid), aiohttp.ClientSession() as session:
        lane = Watched(RouterClient(session, url), engine)
        await until(lane.caught_up, "it has joined")
        memory = []
        for tenth in range(10):
            for start in range(tenth * 100_000, tenth * 100_000 + 100_000, 500):
                engine.publish(*chains(start, 500))
                if start % 10_000 == 0:
                    await until(lane.caught_up, "the router has followed")
            await until(lane.caught_up, "the router has followed")
            memory.append(round(resident(pid), 1))
        print(f"resident {memory} MiB after each 100,000 chains")
        shown = await lane.shown()
    assert (shown["blocks"], shown["lost"]) == ({"GPU": len(PREFIX)}, 0)
    assert max(memory[5:]) < max(memory[:5]) + 8


class Watched:
    """An engine's lane in a router process."""

    def __init__(self, router: RouterClient, engine: FakeEngine) -> None:
        self._router, self._engine = router, engine

    async def shown(self) -> Any:
        return (await self._router.replica(self._engine))["lanes"][0]

    async def caught_up(self) -> bool:
        lanes = (await self._router.replica(self._engine))["lanes"]
        return bool(lanes) and lanes[0]["last_seq"] == self._engine.publishers[0].last_seq
