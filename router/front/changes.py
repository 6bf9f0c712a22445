"""Replicas taken in and out of a running fleet: by this process alone, or by all workers when their parent says so."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from router.fleet.fleet import Fleet
from router.front.errors import unavailable
from router.proof.diagnosis import Diagnosis

__all__ = ["Changes", "Want"]

CHANGE_SECONDS = 5.0
"""How long everybody may take to hear of a change."""

Want = Callable[[str, bool], None]
"""Says that a replica is to be there, or not to be there, to whoever decides that for all workers."""


class Changes:
    """One process's. ``want`` is None where nobody else need hear of a change."""

    def __init__(self, fleet: Fleet, diagnosis: Diagnosis, *, want: Want | None) -> None:
        self._fleet = fleet
        self._diagnosis = diagnosis
        self._want = want
        self._changed = asyncio.Event()

    async def add(self, url: str) -> None:
        """Take a replica in.

        Raises:
            ApiError: 503, it was not heard of in time.
        """
        if self._want is None:
            self._fleet.add(url)
        else:
            await self._ask(self._want, url, present=True)

    async def remove(self, url: str) -> None:
        """Take a replica out.

        Raises:
            KeyError: it is not of this fleet.
            ApiError: 503, it was not heard of in time.
        """
        self._fleet.replica(url)
        if self._want is None:
            await self._take_out(url)
        else:
            await self._ask(self._want, url, present=False)

    async def bring_in_line(self, urls: Sequence[str]) -> None:
        """Have these replicas, and no others."""
        for url in self._urls().difference(urls):
            await self._take_out(url)
        for url in urls:
            self._fleet.add(url)
        self._changed.set()

    async def _ask(self, want: Want, url: str, *, present: bool) -> None:
        want(url, present)
        try:
            async with asyncio.timeout(CHANGE_SECONDS):
                while (url in self._urls()) is not present:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise unavailable(f"no answer from the router's parent about {url}", code="change_not_made") from None

    async def _take_out(self, url: str) -> None:
        await self._fleet.remove(url)
        self._diagnosis.forget(url)

    def _urls(self) -> set[str]:
        return {replica.url for replica in self._fleet.replicas}
