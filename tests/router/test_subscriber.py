"""A subscriber on real sockets: whatever happens to engine and network, the index ends equal to the engine's truth."""

from __future__ import annotations

import asyncio
import re
import time
from pathlib import Path

import msgspec
import pytest
from event_source import WIDTH, EventSource, Replies, holds_the_truth, stored
from follower import QUICK, following, in_effect, pair
from patience import until
from zmtp_peer import greeting, listening, ready

from contract.descriptor import LaneAddress
from contract.events import AllBlocksCleared, BlockRemoved, Dialect
from contract.kv_events_config import KVEventsConfig
from publisher import EventPublisher, Snapshot
from router.intake.index import BlockIndex
from router.intake.stream_report import StreamState
from router.intake.subscriber import SubscribeError, Subscriber
from router.prompt import Prompt


async def test_live_batches_reach_the_index() -> None:
    async with pair() as (source, follower):
        for name in range(1, 20):
            await source.publish(stored(name))
        await follower.agrees_with(source)
        found = follower.index.match(Prompt([7] * WIDTH), [follower.handle])
        assert found[follower.handle].tokens == WIDTH
        assert follower.subscriber.status.connected


@pytest.mark.parametrize("replies", ["four frames", "three frames"])
async def test_a_late_subscriber_learns_by_replay_what_an_idle_engine_holds(replies: Replies) -> None:
    async with EventSource(replies=replies) as source:
        for name in range(1, 10):
            await source.publish(stored(name))
        async with following(source.endpoint, source.replay_endpoint) as follower:
            await follower.agrees_with(source)
            assert (follower.subscriber.status.replayed, follower.subscriber.status.known_from) == (9, 0)


async def test_what_is_published_while_the_subscription_takes_effect_is_found_out() -> None:
    """An engine may go idle right after; no later batch would ever show the hole."""
    async with EventSource() as source, following(source.endpoint, source.replay_endpoint) as follower:
        await until(lambda: bool(source.requests), "the history is asked for")
        await source.publish(stored(1), lost=True)
        await follower.agrees_with(source)


async def test_a_lost_batch_is_replayed_in_its_place() -> None:
    async with pair() as (source, follower):
        await source.publish(stored(1))
        await source.publish(BlockRemoved(block_hashes=[1], medium="GPU"), lost=True)
        await source.publish(stored(1), stored(2))
        await follower.agrees_with(source)
        status = follower.subscriber.status
        assert (status.gaps, status.lost) == (1, 0)
        assert {row.copies for row in follower.index.blocks(follower.handle)} == {1}


async def test_live_batches_sent_again_have_no_effect() -> None:
    async with pair() as (source, follower):
        await source.publish(stored(1))
        await source.send_again(len(source.log) - 1)
        await source.publish(stored(2))
        await follower.agrees_with(source)
        assert {row.copies for row in follower.index.blocks(follower.handle)} == {1}
        assert follower.subscriber.status.duplicates >= 1


async def test_an_engine_restarted_behind_its_endpoint_is_followed_from_zero() -> None:
    async with pair() as (source, follower):
        for name in range(1, 501):
            await source.publish(stored(name))
        await follower.agrees_with(source)
        await source.stop()
        await until(lambda: not follower.subscriber.status.connected, "the connection broke")
        source.start_again()
        for name in (1_000, 1_001, 1_002):
            await source.publish(stored(name))
        await follower.agrees_with(source)
        assert follower.subscriber.status.restarts == 1
        await until(lambda: follower.state is StreamState.LIVE, "all of it is verified")


async def test_an_engine_restarted_in_silence_holds_nothing() -> None:
    async with pair() as (source, follower):
        await source.publish(stored(1))
        await follower.agrees_with(source)
        await source.stop()
        source.start_again()
        await follower.agrees_with(source)
        assert follower.names == set()


async def test_a_restart_that_hides_behind_higher_numbers_is_noticed() -> None:
    async with pair() as (source, follower):
        await source.publish(stored(1))
        await follower.agrees_with(source)
        behind = len(source.log) + 5
        await source.stop()
        source.start_again()
        for name in range(100, 100 + behind):
            await source.publish(stored(name), lost=True)
        await source.publish(stored(2))
        await follower.agrees_with(source)
        assert 1 not in follower.names


async def test_a_replay_endpoint_that_never_answers_costs_trust_but_no_live_batch() -> None:
    async with pair(replies="never") as (source, follower):
        await source.publish(stored(1))
        await source.publish(stored(2))
        await follower.agrees_with(source)
        status = follower.subscriber.status
        assert status.state in (StreamState.UNTRUSTED, StreamState.REPLAYING)
        assert status.replay_failures >= 1
        assert status.reason is not None
        assert "did not answer a replay within 0.3 s" in status.reason


async def test_a_replay_endpoint_that_speaks_something_else_is_counted() -> None:
    async with pair(replies="nonsense") as (source, follower):
        await source.publish(stored(1))
        await follower.agrees_with(source)
        assert follower.subscriber.status.malformed >= 1


async def test_trust_returns_once_the_engine_can_be_asked() -> None:
    async with pair(replies="never") as (source, follower):
        await source.publish(stored(1), lost=True)
        await source.publish(stored(2))
        await until(lambda: follower.subscriber.status.lost == 1, "the batch is lost")
        source.replies = "four frames"
        await follower.agrees_with(source)
        await until(lambda: follower.state is StreamState.LIVE, "trust has returned")


async def test_a_hole_without_a_replay_endpoint_is_lost_and_said() -> None:
    async with pair(replay=False) as (source, follower):
        await source.publish(stored(1), lost=True)
        await source.publish(stored(2))
        await until(lambda: follower.subscriber.status.lost == 1, "the batch is lost")
        assert (follower.names, follower.state) == ({2}, StreamState.UNTRUSTED)
        await source.publish(AllBlocksCleared())
        await follower.agrees_with(source)
        assert follower.state is StreamState.LIVE


async def test_an_engine_that_is_not_there_yet_is_joined_when_it_comes() -> None:
    async with EventSource() as source:
        await source.stop()
        async with following(source.endpoint, source.replay_endpoint) as follower:
            assert follower.state is StreamState.CONNECTING
            source.start_again()
            await source.publish(stored(1))
            await follower.agrees_with(source)


async def test_a_topic_is_a_prefix_and_none_takes_all() -> None:
    async with (
        EventSource(topic="kv-events") as source,
        following(source.endpoint, None, topic="kv") as kv,
        following(source.endpoint, None) as everything,
        following(source.endpoint, None, topic="load") as load,
    ):
        await in_effect(source, kv)
        await in_effect(source, everything)
        assert load.subscriber.status.last_event_time is None


async def test_foreign_frames_are_counted_and_cost_nothing() -> None:
    async with pair() as (source, follower):
        await source.send_raw(b"", b"no number", b"")
        await source.send_raw(b"alone")
        await source.publish(stored(1))
        await follower.agrees_with(source)
        assert follower.subscriber.status.malformed == 2


async def test_ipv6_endpoints_work() -> None:
    async with EventSource(host="[::1]") as source:
        await source.publish(stored(1))
        async with following(source.endpoint, source.replay_endpoint) as follower:
            await follower.agrees_with(source)
            await in_effect(source, follower)


async def test_an_endpoint_that_is_none_is_refused_in_one_line() -> None:
    index = BlockIndex()
    address = LaneAddress(0, "nowhere", None)
    subscriber = Subscriber(address=address, topic="", index=index, handle=index.add_lane())
    with pytest.raises(SubscribeError, match="cannot subscribe to nowhere: ") as caught:
        await subscriber.start()
    assert "\n" not in str(caught.value)
    await subscriber.close()


async def test_many_lanes_share_one_loop() -> None:
    index = BlockIndex()
    async with EventSource() as source:
        for name in range(1, 30):
            await source.publish(stored(name))
        handles = [index.add_lane() for _ in range(8)]
        address = LaneAddress(0, source.endpoint, source.replay_endpoint)
        subscribers = [
            Subscriber(address=address, topic="", index=index, handle=handle, limits=QUICK) for handle in handles
        ]
        await asyncio.gather(*(subscriber.start() for subscriber in subscribers))
        await until(lambda: all(holds_the_truth(index, handle, source) for handle in handles), "all lanes agree")
        await asyncio.gather(*(subscriber.close() for subscriber in subscribers))


async def test_a_large_batch_does_not_stall_the_loop() -> None:
    """The longest pause of another task stays far below the time that the whole batch takes."""
    async with pair() as (source, follower):
        longest, ticks = 0.0, 0

        async def tick() -> None:
            nonlocal longest, ticks
            while True:
                before = time.perf_counter()
                await asyncio.sleep(0)
                longest, ticks = max(longest, time.perf_counter() - before), ticks + 1

        ticker = asyncio.create_task(tick())
        await source.publish(*map(stored, range(1, 20_001)))
        await follower.agrees_with(source)
        ticker.cancel()
        print(f"longest pause {longest * 1e3:.1f} ms, {ticks} turns")
        assert ticks > 200


async def test_a_message_above_the_bound_is_not_taken_in_and_live_batches_go_on() -> None:
    """The connection ends there, the replay cannot bring it either, and the lane says which bound it was."""
    limits = msgspec.structs.replace(QUICK, message_bytes=20_000)
    async with EventSource() as source, following(source.endpoint, source.replay_endpoint, limits=limits) as follower:
        await in_effect(source, follower)
        await source.publish(*map(stored, range(1, 1_000)))
        await follower.until_state(StreamState.UNTRUSTED)
        assert re.search(
            r"hung up before its replay ended: a message of \d+ bytes, above 20000", follower.status.reason or ""
        )
        assert follower.status.malformed >= 1
        source.forget()

        async def heard_again() -> bool:
            await source.publish(stored(5_000))
            return 5_000 in follower.names

        await until(heard_again, "a live batch has come")
        assert follower.names == {5_000}


@pytest.mark.parametrize("events", [1, 200])
async def test_a_fault_of_ours_shows_on_the_lane(events: int, caplog: pytest.LogCaptureFixture) -> None:
    """Whether a batch is applied on the spot or in turns: the lane follows no more, and says why."""
    async with pair(replay=False) as (source, follower):
        follower.index.remove_lane(follower.handle)
        await source.publish(*map(stored, range(1, events + 1)))
        await follower.until_state(StreamState.UNTRUSTED)
        assert follower.status.reason == f"following {source.endpoint} failed: KeyError({follower.handle})"
        assert not follower.status.connected
        assert [record.exc_info is not None for record in caplog.records] == [True]


async def test_a_publisher_of_another_kind_is_counted_and_named_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(greeting() + ready("ROUTER"))
        await reader.read()

    async with listening(serve) as endpoint, following(endpoint, None) as follower:
        await until(lambda: follower.status.malformed > 1, "it was tried again")
        assert (follower.status.connected, follower.state) == (False, StreamState.CONNECTING)
        (told,) = caplog.messages
        assert told.startswith(f"{endpoint} sends what cannot be used, which is counted: ")
        assert told.endswith("the peer is a 'ROUTER' socket, not PUB or XPUB")


# With the project's own publisher


@pytest.mark.parametrize("kind", ["tcp", "ipc"])
async def test_our_own_publisher_is_followed(kind: str, tmp_path: Path) -> None:
    endpoint, replay = ("tcp://127.0.0.1:0",) * 2 if kind == "tcp" else (f"ipc://{tmp_path}/e", f"ipc://{tmp_path}/r")
    config = KVEventsConfig(publisher="zmq", endpoint=endpoint, replay_endpoint=replay, bind=True, topic="kv")
    publisher = EventPublisher(config, dp_rank=1, dialect=Dialect.SGLANG)
    try:
        publisher.publish([AllBlocksCleared(), stored(1)])
        async with following(publisher.endpoint, publisher.replay_endpoint, topic="kv") as follower:
            await until(lambda: follower.names == {1}, "the history has come")
            publisher.publish([stored(2)])
            await until(lambda: follower.names == {1, 2}, "a live batch has come")
    finally:
        publisher.close()


async def test_a_log_that_has_forgotten_is_replaced_by_our_publishers_snapshot() -> None:
    held = set(range(1, 50))
    config = KVEventsConfig(
        publisher="zmq", endpoint="tcp://127.0.0.1:0", replay_endpoint="tcp://127.0.0.1:0", bind=True, buffer_steps=3
    )
    publisher = EventPublisher(config, snapshot=lambda: Snapshot(publisher.last_seq, [stored(name) for name in held]))
    try:
        for name in held:
            publisher.publish([stored(name)])
        async with following(publisher.endpoint, publisher.replay_endpoint) as follower:
            await until(lambda: follower.names == held, "the snapshot has come")
            publisher.publish([stored(100)])
            await until(lambda: follower.names == held | {100}, "and what came after it")
            status = follower.subscriber.status
            assert (status.state, status.known_from, status.lost) == (StreamState.LIVE, 0, 0)
    finally:
        publisher.close()
