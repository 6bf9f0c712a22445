"""Publishers as the conformance tests watch them: batches made by hand, played while somebody listens, and judged."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from event_source import EventSource
from patience import PATIENCE, until

from contract.events import AllBlocksCleared, BlockRemoved, BlockStored, Dialect, Event, encode_batch
from contract.framing import Frame
from router.conformance.judge import judge
from router.conformance.listener import Target, Watch, WatchLimits
from router.conformance.rules import RULES, Finding, Rule, Verdict

WIDTH = 6
QUICK = WatchLimits(connect=5.0, reply=0.5, grace=0.05)
Play = Callable[[EventSource], Awaitable[None]]


def chain(*names: int, parent: int | None = None, width: int = WIDTH, medium: str = "GPU") -> BlockStored:
    return BlockStored(
        block_hashes=names,
        parent_block_hash=parent,
        token_ids=[name for name in names for _ in range(width)],
        block_size=width,
        medium=medium,
    )


def removed(*names: int, medium: str = "GPU") -> BlockRemoved:
    return BlockRemoved(block_hashes=names, medium=medium)


def batch(seq: int, *events: Event, rank: int = 0, ts: float = 0.0) -> Frame:
    return Frame(b"", seq, encode_batch(events, ts=ts, dp_rank=rank, dialect=Dialect.SGLANG))


GOOD = [
    batch(0, AllBlocksCleared(), chain(1, 2)),
    batch(1, chain(3, 4, parent=2), removed(4)),
    batch(2, chain(5, parent=3), chain(1, 2, medium="CPU_PINNED"), removed(5)),
]


def by_rule(findings: list[Finding]) -> dict[Rule, Finding]:
    assert [finding.rule for finding in findings] == list(RULES)
    return {finding.rule: finding for finding in findings}


def failed(findings: list[Finding]) -> set[Rule]:
    return {finding.rule for finding in findings if finding.verdict is Verdict.FAIL}


async def watched(source: EventSource, play: Play, *, advertised_width: int | None = None) -> list[Finding]:
    """Watch a source that begins to play once its history has been asked for, until it has been heard to its end."""
    watch = Watch(Target(endpoint=source.endpoint, replay_endpoint=source.replay_endpoint), QUICK)
    watching = asyncio.create_task(watch.run(PATIENCE))
    await source.subscribed()
    if source.replay_endpoint is not None:
        await until(lambda: bool(source.requests), "the history is asked for")
    sent_before = source.sent
    await play(source)
    await until(lambda: watch.heard == source.sent - sent_before, "everything has been heard")
    watch.stop()
    return judge(await watching, advertised_width=advertised_width)


def playing(*frames: Frame) -> Play:
    async def play(source: EventSource) -> None:
        for frame in frames:
            await source.relay(frame)

    return play
