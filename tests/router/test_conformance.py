"""The conformance judge watches live streams: released engines and our publisher pass, each broken rule is seen."""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from event_source import EventSource
from patience import PATIENCE, until
from watched_publisher import (
    GOOD,
    QUICK,
    WIDTH,
    Play,
    batch,
    by_rule,
    chain,
    failed,
    playing,
    removed,
    watched,
)

from contract.events import AllBlocksCleared, BlockStored, Event
from contract.framing import END_SEQ, Frame, encode_seq, pub_frames, replay_end, replay_reply
from contract.kv_events_config import KVEventsConfig
from publisher import EventPublisher, Snapshot
from router.conformance.judge import judge
from router.conformance.listener import ListenError, Target, Watch, WatchLimits
from router.conformance.observation import Asked, LiveMessage, Observation, ReplaySession
from router.conformance.rules import RULES, Rule, Verdict
from router.replay import read_recording

GOLDEN = Path(__file__).parent.parent / "golden"
HISTORIES = sorted(
    path
    for path in GOLDEN.glob("*.jsonl")
    if "wire" not in path.name and path.name not in ("sglang-loadstat.jsonl", "sglang-page16-dp3.jsonl")
)


# Those that conform


@pytest.mark.parametrize("path", HISTORIES, ids=lambda path: path.stem)
def test_what_released_engines_sent_breaks_no_rule(path: Path) -> None:
    frames = list(read_recording(path))
    everything = ReplaySession(
        asked=Asked.ALL,
        start=0,
        replies=[*map(replay_reply, frames), replay_end()],
        live_before=len(frames),
        live_after=len(frames),
        silent=False,
    )
    live = [LiveMessage(pub_frames(frame), 1) for frame in frames]
    findings = judge(Observation(reached=True, live=live, sessions=[everything]))
    assert failed(findings) == set(), findings
    assert by_rule(findings)[Rule.PARENTS].seen > 0


@pytest.mark.parametrize("replies", ["four frames", "three frames"])
async def test_recorded_frames_published_again_pass(replies: Any) -> None:
    frames = list(read_recording(GOLDEN / "vllm-sched-dcp4.jsonl"))
    async with EventSource(replies=replies) as source:
        for frame in frames[:10]:
            await source.relay(frame, lost=True)  # before anybody listens
        findings = await watched(source, playing(*frames[10:]), advertised_width=64)
    assert failed(findings) == set(), findings
    seen = {finding.rule for finding in findings if finding.verdict is Verdict.PASS}
    assert seen == set(RULES) - {Rule.RESTART}


@pytest.mark.parametrize("buffer_steps", [10_000, 5])
async def test_our_own_publisher_passes(buffer_steps: int) -> None:
    """With a log that holds everything, and with one that is replaced by a snapshot."""
    held: list[int] = []
    async with our_publisher(held, buffer_steps=buffer_steps) as publisher:
        target = Target(endpoint=publisher.endpoint, replay_endpoint=publisher.replay_endpoint, topic="kv")
        watch = Watch(target, QUICK)
        watching = asyncio.create_task(watch.run(PATIENCE))
        for name in itertools.count(100):
            await asyncio.sleep(0.01)  # a publisher at work, until it has been watched for long enough
            if watching.done():
                break
            if watch.heard > 20:
                watch.stop()
            held.append(name)
            publisher.publish([chain(name, parent=name - 1 if name > 100 else None)])
        findings = judge(watching.result(), advertised_width=WIDTH)
    assert failed(findings) == set(), findings
    seen = {finding.rule for finding in findings if finding.verdict is Verdict.PASS}
    assert seen == set(RULES) - {Rule.RESTART, Rule.REMOVALS}


@asynccontextmanager
async def our_publisher(held: list[int], *, buffer_steps: int) -> AsyncIterator[EventPublisher]:
    local = "tcp://127.0.0.1:0"
    config = KVEventsConfig(
        publisher="zmq", endpoint=local, replay_endpoint=local, bind=True, topic="kv", buffer_steps=buffer_steps
    )

    def snapshot() -> Snapshot:
        seq, names = publisher.last_seq, list(held)
        return Snapshot(seq, [chain(*names[: seq + 1])])

    publisher = EventPublisher(config, snapshot=snapshot)
    try:
        yield publisher
    finally:
        publisher.close()


async def test_an_engine_that_is_restarted_while_it_is_watched_passes() -> None:
    async def play(source: EventSource) -> None:
        await playing(*GOOD)(source)
        source.log.clear()
        await playing(batch(0, AllBlocksCleared(), chain(50), ts=1.0), batch(1, chain(51, parent=50)))(source)

    async with EventSource() as source:
        findings = await watched(source, play)
    assert failed(findings) == set(), findings
    assert by_rule(findings)[Rule.RESTART].verdict is Verdict.PASS


async def test_what_lay_before_the_first_batch_known_is_no_fault() -> None:
    """Joined late, with nothing to replay: a child of an unknown parent, a removal of an unknown block."""
    async with EventSource(replay=False) as source:

        async def play(source: EventSource) -> None:
            while True:
                await source.relay(batch(900 + len(source.log), chain(7, 8, parent=6), removed(7, 8), removed(3)))
                await asyncio.sleep(0.01)

        target = Target(endpoint=source.endpoint)
        player = asyncio.create_task(play(source))
        findings = judge(await Watch(target, WatchLimits(messages=10)).run(PATIENCE))
        player.cancel()
    assert failed(findings) == set(), findings
    assert by_rule(findings)[Rule.NUMBERING].verdict is Verdict.PASS
    assert by_rule(findings)[Rule.REPLAY_ANSWER].verdict is Verdict.NOT_SEEN


# Those that do not: live


def broken(*events: Event) -> Play:
    """A good history, and then a batch of these events."""
    return playing(*GOOD, batch(3, *events))


async def send_raw(source: EventSource) -> None:
    await playing(*GOOD)(source)
    await source.send_raw(b"", encode_seq(3))


async def send_a_short_number(source: EventSource) -> None:
    await playing(*GOOD)(source)
    await source.send_raw(b"", b"\0\0\0\3", GOOD[0].payload)


async def send_the_end_marker_live(source: EventSource) -> None:
    await playing(*GOOD)(source)
    await source.send_raw(b"", END_SEQ, b"")


async def send_twice(source: EventSource) -> None:
    await playing(*GOOD)(source)
    await source.send_again(1)


async def send_late(source: EventSource) -> None:
    await playing(batch(0), batch(2), batch(1))(source)
    source.log.sort(key=lambda frame: frame.seq)


async def restart_above_zero(source: EventSource) -> None:
    await playing(*GOOD)(source)
    source.log.clear()
    await playing(batch(1, chain(70), ts=1.0), batch(2, chain(71, parent=70), ts=1.0))(source)


BROKEN_LIVE: list[tuple[Rule, str, Play]] = [
    (Rule.FRAMES, "3 frames", send_raw),
    (Rule.FRAMES, "8 bytes", send_a_short_number),
    (Rule.FRAMES, "above", send_the_end_marker_live),
    (Rule.NUMBERING, "batch 3 never came", playing(*GOOD, batch(4, chain(6)))),
    (Rule.NUMBERING, "batch 1 came twice", send_twice),
    (Rule.NUMBERING, "batch 1 came after batch 2", send_late),
    (Rule.RESTART, "another batch 1", restart_above_zero),
    (Rule.BATCH, "not an event batch", playing(*GOOD, Frame(b"", 3, b"\x93\x01"))),
    (Rule.EVENTS, "BlockMoved", playing(*GOOD, Frame(b"", 3, b"\x93\xcb" + bytes(8) + b"\x91\x91\xaaBlockMoved\x00"))),
    (Rule.RANK, "of rank 1", playing(*GOOD, batch(3, chain(6), rank=1))),
    (Rule.WIDTH, "block_size 4, and 6 before", broken(chain(6, width=4))),
    (Rule.TOKENS, "6 ids for 2 hashes", broken(BlockStored(
        block_hashes=[6, 7], parent_block_hash=None, token_ids=[0] * 6, block_size=6, medium="GPU"))),
    (Rule.TOKENS, "0 ids for 1 hashes", broken(BlockStored(
        block_hashes=[6], parent_block_hash=None, token_ids=[], block_size=6, medium="GPU"))),
    (Rule.PARENTS, "parent 77 was never announced", broken(chain(6, parent=77))),
    (Rule.ORDER, "parent 7 was announced later", broken(chain(8, parent=7), chain(7))),
    (Rule.IDENTITY, "hash 1 stood for other tokens", broken(BlockStored(
        block_hashes=[1], parent_block_hash=None, token_ids=[9] * 6, block_size=6, medium="GPU"))),
    (Rule.IDENTITY, "hash 3 stood for", broken(chain(3, parent=1))),
    (Rule.REMOVALS, "9 is not held in GPU", broken(removed(9))),
    (Rule.REMOVALS, "4 is not held in GPU", broken(removed(4))),
    (Rule.REMOVALS, "3 is not held in CPU_PINNED", broken(removed(3, medium="CPU_PINNED"))),
]  # fmt: skip


@pytest.mark.parametrize(
    ("rule", "evidence", "play"), BROKEN_LIVE, ids=[f"{rule}: {evidence}" for rule, evidence, _ in BROKEN_LIVE]
)
async def test_a_broken_stream_fails_the_rule_that_it_breaks(rule: Rule, evidence: str, play: Play) -> None:
    async with EventSource() as source:
        findings = await watched(source, play)
    finding = by_rule(findings)[rule]
    assert finding.verdict is Verdict.FAIL, findings
    assert finding.evidence is not None
    assert evidence in finding.evidence
    assert failed(findings) == {rule}, findings


async def test_events_of_another_width_than_the_server_advertises_fail() -> None:
    async with EventSource() as source:
        findings = await watched(source, playing(*GOOD), advertised_width=3)
    assert failed(findings) == {Rule.ADVERTISED_WIDTH}
    assert by_rule(findings)[Rule.ADVERTISED_WIDTH].evidence == "events carry 6, the server advertises 3"


async def test_a_hole_that_is_replayed_is_none() -> None:
    async def play(source: EventSource) -> None:
        await source.relay(GOOD[0])
        await source.relay(GOOD[1], lost=True)
        await source.relay(GOOD[2])

    async with EventSource() as source:
        findings = await watched(source, play)
    assert failed(findings) == set(), findings


async def test_a_hole_of_a_publisher_without_replay_fails() -> None:
    async with EventSource(replay=False) as source:

        async def play(source: EventSource) -> None:
            for seq in itertools.count():
                if seq % 10:
                    await source.relay(batch(seq))
                    await asyncio.sleep(0.005)

        player = asyncio.create_task(play(source))
        target = Target(endpoint=source.endpoint)
        findings = judge(await Watch(target, WatchLimits(messages=30)).run(PATIENCE))
        player.cancel()
    assert failed(findings) == {Rule.NUMBERING}
    evidence = str(by_rule(findings)[Rule.NUMBERING].evidence)
    assert re.fullmatch(r"batch \d*1 came live after batch \d*9, and batch \d*0 never came", evidence), evidence


async def test_an_endpoint_where_nobody_is_fails_and_one_that_is_none_is_an_error() -> None:
    async with EventSource() as source:
        await source.stop()
        seen = await Watch(Target(endpoint=source.endpoint), WatchLimits(connect=0.2)).run(PATIENCE)
    assert failed(judge(seen)) == {Rule.REACHABLE}
    with pytest.raises(ListenError, match="cannot connect to nowhere: "):
        await Watch(Target(endpoint="nowhere")).run(PATIENCE)


async def test_watching_ends_where_its_bound_is_reached() -> None:
    async def play(source: EventSource) -> None:
        for seq in range(50):
            await source.relay(batch(seq))

    async with EventSource() as source:
        target = Target(endpoint=source.endpoint, replay_endpoint=source.replay_endpoint)
        limits = WatchLimits(messages=20, reply=0.5, grace=0.05)
        watching = asyncio.create_task(Watch(target, limits).run(PATIENCE))
        await until(lambda: bool(source.requests), "the history is asked for")
        await play(source)
        seen = await watching
    assert seen.full
    assert len(seen.live) == 20
