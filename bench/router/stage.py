"""Every subject with two mock workers of its own, so that nobody reads the events of another's requests."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

import aiohttp
import msgspec

from bench.children import ChildGroup
from bench.router.mock_answers import MODEL
from bench.router.mock_cache import BLOCK_WIDTH
from bench.router.mock_worker import READY
from bench.router.process_cost import ProcessCost
from bench.router.routers import Fleet, Replica, Router
from bench.router.start import start_router

__all__ = ["DIRECT", "Subject", "set_stage"]

DIRECT = "direct"
WORKERS = 2


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    """Whoever takes requests: a router, or both workers without one. ``cost`` is the router's."""

    name: str
    urls: Sequence[str]
    fleet: Fleet
    router: Router | None = None
    cost: ProcessCost | None = None

    @property
    def takes_ids(self) -> bool:
        """Whether it can be asked with token ids."""
        return self.router is None or self.router.takes_ids


async def set_stage(children: ChildGroup, routers: Sequence[Router], lexicon: Path) -> list[Subject]:
    """Start all of them; ``direct`` comes first.

    Raises:
        ChildError: a process did not start.
    """
    fleets = await asyncio.gather(*(_start_fleet(children, index, lexicon) for index in range(len(routers) + 1)))
    subjects = [Subject(name=DIRECT, urls=[replica.url for replica in fleets[0].replicas], fleet=fleets[0])]
    for router, fleet in zip(routers, fleets[1:], strict=True):
        started = await start_router(children, router, fleet)
        subject = Subject(name=router.name, urls=[started.url], fleet=fleet, router=router, cost=started.cost)
        subjects.append(subject)
    return subjects


async def _start_fleet(children: ChildGroup, index: int, lexicon: Path) -> Fleet:
    command = [sys.executable, "-m", "bench.router.mock_worker", "--lexicon", str(lexicon)]
    names = [f"worker-{index}-{number}" for number in range(WORKERS)]
    workers = await asyncio.gather(*(children.start(name, command, ready_mark=READY) for name in names))
    async with aiohttp.ClientSession() as session:
        replicas = [await _describe(session, worker.urls[0]) for worker in workers]
    return Fleet(replicas=replicas, model=MODEL, block_width=BLOCK_WIDTH)


async def _describe(session: aiohttp.ClientSession, url: str) -> Replica:
    async with session.get(f"{url}/kv_event_sources") as response:
        source = msgspec.json.decode(await response.read())["0"]
    return Replica(url, source["endpoint"], source["replay_endpoint"])
