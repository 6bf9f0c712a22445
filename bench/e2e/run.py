"""Plays a scene behind one router after the other, on one fleet whose caches are emptied in between."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path

import aiohttp

from bench.children import ChildGroup
from bench.client import BenchClient
from bench.e2e.engines import Engines
from bench.e2e.outcome import Outcome
from bench.e2e.scene import MODEL, Scene
from bench.play import send_on_time
from bench.router.routers import Router
from bench.router.start import start_router
from bench.tally import Ask, Tally

__all__ = ["RunError", "play_behind"]

CONCURRENCY = 1024
REQUEST_SECONDS, READY_SECONDS = 120.0, 60.0
_ENGINE_READY = "kvsteer-engine ready "


class RunError(RuntimeError):
    """A run that says nothing of its router, in one line."""


async def play_behind(
    routers: Sequence[Router], scene: Scene, *, runs: int, log_dir: Path
) -> AsyncIterator[tuple[Router, Outcome]]:
    """Outcomes, run after run; routers take turns within each.

    Raises:
        ChildError: a process died or never became ready.
        EnginesError: an engine does not answer as it should.
        RunError: a router answered nothing.
    """
    bodies = list(scene.bodies())
    async with ChildGroup(log_dir) as children, _session() as session:
        started = await children.start(
            "engines", scene.engines(), ready_mark=_ENGINE_READY, ready_count=scene.replicas, seconds=READY_SECONDS
        )
        engines = Engines(session, started.urls)
        for _ in range(runs):
            for router in routers:
                yield router, await children.supervise(_play(children, session, engines, router, bodies))


async def _play(
    children: ChildGroup,
    session: aiohttp.ClientSession,
    engines: Engines,
    router: Router,
    bodies: Iterable[tuple[float, bytes]],
) -> Outcome:
    await engines.empty()
    started = await start_router(children, router, await engines.fleet(model=MODEL))
    before, tally = await engines.books(), Tally()
    ask = Ask(BenchClient(session, started.url), tally, lambda: None)
    await send_on_time(bodies, ask, concurrency=CONCURRENCY)
    after = await engines.books()
    await children.stop(started.child)
    if not tally.replies:
        raise RunError(f"{router.name} answered nothing; the first of {len(tally.failures)}: {tally.failures[0]}")
    return Outcome(
        ttfts=[reply.ttft for reply in tally.replies if reply.ttft is not None],
        failed=len(tally.failures),
        books=[now.since(was) for now, was in zip(after, before, strict=True)],
        late_seconds=tally.late_seconds,
    )


def _session() -> aiohttp.ClientSession:
    """A pool without a limit of its own: the player bounds what is under way."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=REQUEST_SECONDS)
    )
