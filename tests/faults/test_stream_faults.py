"""The stream rows of the fault list: events lost, late, twice and from another engine, through real sockets."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import zmq
import zmq.asyncio
from event_source import EventSource, Replies
from fake_engine import FakeEngine, stored
from follower import following, in_effect
from patience import in_time, until
from publisher_peers import published
from router_stage import RouterClient, Stage

from contract.events import AllBlocksCleared, BlockRemoved, BlockStored, Dialect, encode_batch, normalize_hash
from contract.framing import Frame, parse_replay_reply
from publisher import PublisherError
from router.intake.index import LaneLimits
from router.replay import read_recording

WIDTH = 6
GOLDEN = Path(__file__).parent.parent / "golden"
A, B, C = ([letter] * (2 * WIDTH + 1) for letter in (1, 2, 3))
"""Prompts of two blocks and a token each: the last token is always computed, so it is in no hit."""


class Wired:
    """A router, an engine whose events a test sends, and what the router makes of them."""

    def __init__(self, router: RouterClient, engine: FakeEngine, source: EventSource) -> None:
        self.router, self.engine, self.source = router, engine, source

    async def lane(self) -> Any:
        """The engine's lane, as ``/replicas`` shows it."""
        return (await self.router.replica(self.engine))["lanes"][0]

    async def until_lane(self, **expected: Any) -> Any:
        """Wait until the lane shows these values, for an instant at least."""

        async def shown() -> bool:
            lane = await self.lane()
            return all(lane[name] == value for name, value in expected.items())

        await until(shown, f"the lane shows {expected}")
        return await self.lane()

    async def until_matched(self, tokens: Sequence[int], count: int) -> None:
        await self.router.until_matched(tokens, {self.engine.url: count})

    async def copies(self) -> dict[str, int]:
        """Copies of each block by its hash, as ``/index`` shows them."""
        record = await self.router.get("/index", url=self.engine.url)
        return {block["hash"]: block["copies"] for block in record["blocks"]}

    async def until_live(self) -> None:
        """Wait until the subscription is in effect: publish what changes nothing until one batch has come live."""

        async def heard() -> bool:
            await self.source.publish(BlockRemoved(block_hashes=[0], medium="GPU"))
            return (await self.lane())["event_age"] is not None

        await until(heard, "a live batch has come")
        await self.until_lane(last_seq=self.source.log[-1].seq)


async def wired(stage: Stage, source: EventSource | None = None, *, live: bool = True) -> Wired:
    """One router in front of one engine; ``live``: its subscription is known to be in effect."""
    engine = FakeEngine(width=WIDTH)
    source = await stage.wire(engine, source)
    found = Wired(await stage.router(engine), engine, source)
    if live:
        await found.until_live()
    return found


def blocks(tokens: Sequence[int]) -> BlockStored:
    return stored(tokens, width=WIDTH)


def one_block(name: int, *, parent: int | None = None) -> BlockStored:
    """The store of one block under a hash of the test's choice."""
    return BlockStored(
        block_hashes=[name], parent_block_hash=parent, token_ids=[name] * WIDTH, block_size=WIDTH, medium="GPU"
    )


def gone(tokens: Sequence[int]) -> BlockRemoved:
    return BlockRemoved(block_hashes=blocks(tokens).block_hashes, medium="GPU")


def tail(tokens: Sequence[int]) -> BlockStored:
    """The store of all blocks but the first, which only names its parent."""
    whole = blocks(tokens)
    return BlockStored(
        block_hashes=whole.block_hashes[1:],
        parent_block_hash=whole.block_hashes[0],
        token_ids=whole.token_ids[WIDTH:],
        block_size=WIDTH,
        medium="GPU",
    )


@pytest.mark.fault("S1")
async def test_a_lost_batch_is_filled_in_before_what_came_after_it(stage: Stage) -> None:
    """A batch is lost and a replay is to be had: it applies in its place, before newer ones, and nothing twice."""
    lane = await wired(stage)
    await lane.source.publish(blocks(A))
    await lane.source.publish(gone(A), lost=True)
    await lane.source.publish(blocks(A), blocks(B))
    await lane.until_matched(B, 12)
    assert set((await lane.copies()).values()) == {1}
    shown = await lane.until_lane(stream="live", last_seq=lane.source.log[-1].seq)
    assert (shown["gaps"], shown["lost"]) == (1, 0)


@pytest.mark.fault("S2")
@pytest.mark.parametrize("replay", ["none", "too old"])
async def test_a_batch_that_cannot_be_had_is_lost_and_its_children_wait(stage: Stage, replay: str) -> None:
    """A batch is lost, and there is no replay or it is too old: counted; children wait, and match with their parent."""
    lane = await wired(stage, await stage.source(EventSource(replay=replay != "none")))
    await lane.source.publish(blocks(A), lost=True)
    if replay == "too old":
        lane.source.forget()
    await lane.source.publish(tail(A))
    shown = await lane.until_lane(lost=1)
    assert shown["stream"] == "untrusted"
    assert "lost" in shown["reason"]
    assert await lane.router.matched(A) == {lane.engine.url: 0}
    await lane.source.publish(blocks(A[:WIDTH]))
    await lane.until_matched(A, 12)
    await lane.router.until_fault(lane.engine, "stream-untrusted")


@pytest.mark.fault("S2")
async def test_no_more_children_wait_than_the_bound_allows() -> None:
    """Children of parents that never come keep arriving: the oldest stop waiting, and their number stays bounded."""
    async with EventSource(replay=False) as source, following(
        source.endpoint, None, lane_limits=LaneLimits(orphans=8)
    ) as follower:  # fmt: skip
        await in_effect(source, follower)
        for name in range(100, 150):
            await source.publish(one_block(name, parent=name + 1000))
        await follower.agrees_with(source)
        stats = follower.index.stats(follower.handle)
        assert (stats.orphans, stats.orphans_dropped) == (8, 42)
        await source.publish(one_block(1149))
        await until(lambda: follower.matched([1149] * WIDTH + [149] * WIDTH) == 12, "the last child is adopted")


@pytest.mark.fault("S3")
async def test_a_replay_endpoint_that_never_answers_stops_nothing_and_is_said(stage: Stage) -> None:
    """A replay endpoint accepts and never answers: a deadline; live events go on; the lane is untrusted."""
    lane = await wired(stage, await stage.source(EventSource(replies="never")), live=False)
    await until(lambda: bool(lane.source.requests), "the history is asked for")

    async def heard() -> bool:
        await lane.source.publish(blocks(A))
        return (await lane.router.matched(A))[lane.engine.url] == 12

    await until(heard, "live events go on")
    shown = await lane.until_lane(stream="untrusted")
    assert "did not answer a replay within 2 s" in shown["reason"]
    await lane.source.publish(blocks(B))
    await lane.until_matched(B, 12)
    await lane.router.until_fault(lane.engine, "stream-untrusted")


@pytest.mark.fault("S4")
@pytest.mark.parametrize("replies", ["three frames", "four frames"])
async def test_replies_with_and_without_a_topic_are_understood(stage: Stage, replies: Replies) -> None:
    """A late router is answered in three frames (no topic) or four: it learns all of it either way."""
    source = await stage.source(EventSource(replies=replies))
    await source.publish(blocks(A))
    await source.publish(blocks(B))
    lane = await wired(stage, source, live=False)
    await lane.until_matched(A, 12)
    await lane.until_matched(B, 12)
    assert (await lane.lane())["replayed"] == 2


@pytest.mark.fault("S4")
async def test_a_req_peer_gets_an_answer_and_a_dealer_all_of_it() -> None:
    """A REQ peer asks our publisher: it gets the first batch; a DEALER beside it gets every batch and the end."""
    with published() as publisher:
        for seq in range(3):
            publisher.publish([blocks([seq] * WIDTH)])
        context = zmq.asyncio.Context()
        try:
            req, dealer = (context.socket(kind) for kind in (zmq.REQ, zmq.DEALER))
            for socket, request in ((req, [bytes(8)]), (dealer, [b"", bytes(8)])):
                socket.connect(publisher.replay_endpoint)
                await socket.send_multipart(request)
            first = await in_time(req.recv_multipart())
            assert parse_replay_reply([b"", *first]).seq == 0  # type: ignore[union-attr]
            answers = [parse_replay_reply(await in_time(dealer.recv_multipart())) for _ in range(4)]
            assert [frame and frame.seq for frame in answers] == [0, 1, 2, None]
        finally:
            context.destroy(linger=0)


@pytest.mark.fault("S5")
async def test_what_comes_live_and_by_replay_is_applied_once(stage: Stage) -> None:
    """A replay overlaps live batches, some of them twice: each is applied once, by its number."""
    lane = await wired(stage)
    await lane.source.publish(blocks(A), lost=True)
    for _ in range(3):
        await lane.source.publish(blocks(B))
    await lane.source.send_again(lane.source.log[-2].seq)
    await lane.source.publish(gone(B))
    await lane.source.publish(blocks(C))
    await lane.until_matched(C, 12)
    assert sorted((await lane.copies()).values()) == [1, 1, 1, 1, 2, 2]  # B three times stored, once removed


@pytest.mark.fault("S6")
async def test_an_engine_restarted_behind_its_endpoint_is_another_engine(stage: Stage) -> None:
    """Batch 500, then 0, 1, 2 behind one endpoint: cleared at once; new events apply, old content matches no more."""
    lane = await wired(stage)
    await lane.source.publish(blocks(A))
    while lane.source.log[-1].seq < 500:
        await lane.source.publish(BlockRemoved(block_hashes=[0], medium="GPU"))
    await lane.until_matched(A, 12)
    await lane.until_lane(last_seq=500)
    await lane.source.stop()
    lane.source.start_again()
    for tokens in (B, C, [9] * 7):
        await lane.source.publish(blocks(tokens))
    await lane.until_matched(B, 12)
    await lane.until_matched([9] * 7, 6)
    assert await lane.router.matched(A) == {lane.engine.url: 0}
    shown = await lane.until_lane(last_seq=2, stream="live")
    assert (shown["lost"], shown["reason"]) == (0, None)


@pytest.mark.fault("S7")
async def test_a_router_that_starts_late_takes_what_is_left_and_says_how_much(stage: Stage) -> None:
    """A router starts at batch 1000, of which the last 100 are to be had: it asks from 0 and knows from 900 on."""
    source = await stage.source()
    for seq in range(900, 1000):
        payload = encode_batch([blocks([seq % 250] * WIDTH)], ts=0, dp_rank=0, dialect=Dialect.SGLANG)
        await source.relay(Frame(b"", seq, payload), lost=True)
    lane = await wired(stage, source, live=False)
    await lane.until_matched([999 % 250] * 7, 6)
    shown = await lane.until_lane(stream="live", last_seq=999)
    assert source.requests[0] == 0
    assert (shown["known_from"], shown["replayed"], shown["lost"]) == (900, 100, 0)


@pytest.mark.fault("S8")
async def test_a_removal_that_names_a_parent_before_its_child_takes_both(stage: Stage) -> None:
    """A removal names a parent, then its child: both are gone, and nothing is an error."""
    lane = await wired(stage)
    await lane.source.publish(blocks(A), blocks(B))
    await lane.until_matched(A, 12)
    await lane.source.publish(gone(A))
    await lane.until_matched(A, 0)
    assert len(await lane.copies()) == 2
    record = await lane.router.get("/index", url=lane.engine.url)
    assert record["rejected_events"] == 0


@pytest.mark.fault("S9")
async def test_clearing_keeps_its_place_in_a_batch(stage: Stage) -> None:
    """AllBlocksCleared alone empties the lane; cleared and then stored in one batch, what was stored is there."""
    lane = await wired(stage)
    await lane.source.publish(blocks(A))
    await lane.until_matched(A, 12)
    await lane.source.publish(blocks(B), AllBlocksCleared(), blocks(C))
    await lane.until_matched(C, 12)
    assert await lane.router.matched(A) == await lane.router.matched(B) == {lane.engine.url: 0}
    await lane.source.publish(AllBlocksCleared())
    await lane.until_matched(C, 0)


@pytest.mark.fault("S10")
async def test_what_one_engine_removes_another_still_holds(stage: Stage) -> None:
    """A and B hold the same blocks and A removes them: B still matches."""
    one, other = FakeEngine(width=WIDTH), FakeEngine(width=WIDTH)
    for engine in (one, other):
        engine.publish_on()
        await stage.engine(engine)
    router = await stage.router(one, other)
    for engine in (one, other):
        engine.publish(blocks(A))
    await router.until_matched(A, {one.url: 12, other.url: 12})
    one.publish(gone(A))
    await router.until_matched(A, {one.url: 0, other.url: 12})


@pytest.mark.fault("S11")
async def test_a_block_that_left_the_gpu_is_still_a_hit_where_the_host_keeps_it(stage: Stage) -> None:
    """The GPU copy is removed and the host copy stays: still a hit, of the host's tier."""
    lane = await wired(stage)
    whole = blocks(A)
    on_host = BlockStored(
        block_hashes=whole.block_hashes,
        parent_block_hash=None,
        token_ids=whole.token_ids,
        block_size=WIDTH,
        medium="CPU_PINNED",
    )
    await lane.source.publish(whole, on_host)
    await lane.until_matched(A, 12)
    await lane.source.publish(BlockRemoved(block_hashes=whole.block_hashes[1:], medium="GPU"))
    await until(lambda: _tiers(lane, {"GPU": 6, "CPU": 6}), "half of the hit is the host's")
    await lane.source.publish(BlockRemoved(block_hashes=whole.block_hashes[1:], medium="CPU_PINNED"))
    await lane.until_matched(A, 6)


async def _tiers(lane: Wired, expected: dict[str, int]) -> bool:
    (explained,) = (await lane.router.post("/explain", {"prompt": A}))[1]["lanes"]
    return bool(explained["tiers"] == expected and explained["matched_tokens"] == 12)


@pytest.mark.fault("S12")
async def test_a_block_held_twice_is_there_until_its_second_removal(stage: Stage) -> None:
    """A block is stored twice (two physical copies): it is there after one removal and gone after the second."""
    lane = await wired(stage)
    await lane.source.publish(blocks(A))
    await lane.source.publish(blocks(A))
    await lane.source.publish(gone(A), blocks(B))
    await lane.until_matched(B, 12)
    assert await lane.router.matched(A) == {lane.engine.url: 12}
    await lane.source.publish(gone(A))
    await lane.until_matched(A, 0)


RECORDED = ["vllm-dcp1", "vllm-sched-dcp4", "vllm-extra", "vllm-hybrid-swa", "sglang-page16-tiers", "sglang-page16"]


@pytest.mark.fault("S12")
@pytest.mark.parametrize("name", RECORDED)
async def test_recorded_engines_say_which_announcement_is_a_copy(stage: Stage, name: str) -> None:
    """Recorded engines, with their duplicates and re-announcements, published again: the index is what they held."""
    lane = await wired(stage, live=False)
    frames = list(read_recording(GOLDEN / f"{name}.jsonl"))
    for frame in frames:
        await lane.source.relay(frame)
    await lane.until_lane(last_seq=frames[-1].seq, stream="live")
    record = await lane.router.get("/index", url=lane.engine.url)
    held = {(block["hash"], block["tier"], block["group"]): block["copies"] for block in record["blocks"]}
    assert held == _recorded_truth(name)


def _recorded_truth(name: str) -> dict[tuple[str, str, int | None], int]:
    truth = json.loads((GOLDEN / f"{name}.meta.json").read_text())
    if name.startswith("vllm"):
        rows = truth["final_engine_index"]
        return {(str(row["block_hash"]), "GPU", row["group_idx"]): row["copies"] for row in rows}
    tiers = {"GPU": "GPU", "CPU_PINNED": "CPU", "DISK": "DISK", "EXTERNAL": "EXTERNAL"}
    by_medium = truth["expected_index"].items()
    return {(str(normalize_hash(name)), tiers[medium], None): 1 for medium, names in by_medium for name in names}


@pytest.mark.fault("S13")
async def test_ranks_on_consecutive_ports_are_lanes_of_their_own(stage: Stage) -> None:
    """Data-parallel ranks publish on base+r, each with its own numbers: two lanes; one restarts, the other stays."""
    engine = FakeEngine(width=WIDTH, ranks=2)
    engine.publish_on()
    await stage.engine(engine)
    router = await stage.router(engine)
    engine.publish(blocks(A), rank=0)
    for _ in range(4):
        engine.publish(blocks(A), blocks(B), rank=1)

    async def lanes() -> list[tuple[int, int, int]]:
        """Last batch, and hits of A and of B, by rank."""
        seqs = [lane["last_seq"] for lane in (await router.replica(engine))["lanes"]]
        return list(zip(seqs, await _by_rank(router, A), await _by_rank(router, B), strict=True))

    await _until_equal(lanes, [(0, 12, 0), (3, 12, 12)])
    base, second = engine.publishers
    second.close()
    with published(endpoint=base.endpoint, replay_endpoint=base.replay_endpoint, topic="kv", dp_rank=1) as again:
        assert again.endpoint == second.endpoint
        again.publish([blocks(B)])
        await _until_equal(lanes, [(0, 12, 0), (0, 0, 12)])


async def _by_rank(router: RouterClient, tokens: Sequence[int]) -> list[int]:
    explained = (await router.post("/explain", {"prompt": tokens}))[1]["lanes"]
    return [lane["matched_tokens"] for lane in sorted(explained, key=lambda lane: lane["dp_rank"])]


async def _until_equal(ask: Any, expected: object) -> None:
    async def equal() -> bool:
        return bool(await ask() == expected)

    await until(equal, f"{expected}")


@pytest.mark.fault("S14")
async def test_an_ipv6_endpoint_works(stage: Stage) -> None:
    """A descriptor names an IPv6 host: the router subscribes there, and asks for replay there."""
    lane = await wired(stage, await stage.source(EventSource(host="[::1]")))
    await lane.source.publish(blocks(A), lost=True)
    await lane.source.publish(blocks(B))
    await lane.until_matched(A, 12)
    assert (await lane.lane())["endpoint"].startswith("tcp://[::1]:")


@pytest.mark.fault("S14")
async def test_an_ipc_endpoint_works_at_every_rank(tmp_path: Path) -> None:
    """An ipc endpoint at rank 0 and at rank 3: two files, both live and replay, and both are followed."""
    fields = {"endpoint": f"ipc://{tmp_path}/e", "replay_endpoint": f"ipc://{tmp_path}/r"}
    with published(**fields) as first, published(**fields, dp_rank=3) as fourth:
        assert (fourth.endpoint, fourth.replay_endpoint) == (f"ipc://{tmp_path}/e_dp3", f"ipc://{tmp_path}/r_dp3")
        for publisher, tokens in ((first, A), (fourth, B)):
            publisher.publish([blocks(tokens)])
            async with following(publisher.endpoint, publisher.replay_endpoint) as follower:
                await until(lambda: follower.matched(tokens) == 12, "the history has come")  # noqa: B023
                publisher.publish([blocks(C)])
                await until(lambda: follower.matched(C) == 12, "a live batch has come")


@pytest.mark.fault("S14")
@pytest.mark.parametrize(("endpoint", "named"), [("tcp://::1:5557", "brackets"), ("tcp://127.0.0.1:65535", "65536")])
async def test_an_endpoint_that_cannot_work_is_an_error_at_the_start(endpoint: str, named: str) -> None:
    """An IPv6 address without brackets, or a rank past the last port: refused at the start in one line."""
    with pytest.raises(PublisherError, match=named) as caught, published(endpoint=endpoint, dp_rank=1):
        pass
    assert "\n" not in str(caught.value)
