"""A worker among its siblings: it answers them, has the fleet that the parent names, and begins when it can serve."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from router.config import RouterConfig
from router.fleet.fleet import Fleet
from router.front.changes import Changes
from router.front.overview import OwnOverview
from router.front.siblings import InnerServer, Page, Siblings
from router.workers.lifeline import Lifeline

__all__ = ["joined", "siblings_of"]

JOIN_SECONDS = 10.0
"""How long a worker that stands in for a dead one leaves its port to the others."""

LOOKS = 500


def siblings_of(lifeline: Lifeline, config: RouterConfig) -> Siblings:
    """The workers beside the one that holds this lifeline."""
    hello = lifeline.hello
    return Siblings(Path(hello.sockets), own_place=hello.place, workers=config.workers)


@asynccontextmanager
async def joined(
    lifeline: Lifeline, siblings: Siblings, fleet: Fleet, *, overview: OwnOverview, changes: Changes
) -> AsyncIterator[None]:
    """Watch the fleet that the parent names, and ask and answer siblings. One that rejoins has caught up on entry."""

    async def fleet_page(_: str) -> bytes:
        return msgspec.json.encode(await overview.fleet())

    async def receipt_page(number: str) -> bytes | None:
        return await overview.receipt(number)

    async def families_page(_: str) -> bytes:
        return overview.families()

    pages: dict[str, Page] = {"/replicas": fleet_page, "/requests/{id}": receipt_page, "/families": families_page}
    async with siblings, InnerServer(Path(lifeline.hello.sockets), place=lifeline.hello.place, pages=pages):
        fleet.start()
        following = asyncio.create_task(lifeline.follow(changes.bring_in_line), name="lifeline")
        try:
            if lifeline.hello.rejoins:
                await _until_ready(fleet)
            yield
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)


async def _until_ready(fleet: Fleet) -> None:
    """Wait until requests may come, but not for ever: with no replica at all there is nothing to wait for."""
    for _ in range(LOOKS):
        if fleet.ready:
            return
        await asyncio.sleep(JOIN_SECONDS / LOOKS)
