"""The fleet: all replicas, each watched by a task that probes it and keeps its lanes in line.

A replica need not be there when the router starts, may go, and may come back as something else; the watch finds out
within one probe interval. The proxy reports what it runs into, so that a dead replica is looked at sooner.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator

from router.fleet.health import Failure, State
from router.fleet.lane import Lane
from router.fleet.prober import ProbeError, Prober
from router.fleet.replica import Replica

__all__ = ["Fleet"]

_LOG = logging.getLogger(__name__)
MIN_PAUSE = 0.02
"""Between two looks, however many requests fail meanwhile."""

IDENTIFY_EVERY = 10
"""Every so many probes are thorough: models come and go on a running engine."""


AfterLook = Callable[[Replica], object]
"""Told of a replica each time it was looked at."""


class Fleet:
    """Replicas in the order given. ``start`` begins watching, ``close`` ends it; ``interval`` in seconds."""

    def __init__(
        self, replicas: Iterable[Replica], *, prober: Prober, interval: float, after_look: AfterLook | None = None
    ) -> None:
        self.replicas = list(replicas)
        self.watch_errors = 0
        self._prober = prober
        self._interval = interval
        self._after_look = after_look
        self._by_url = {replica.url: replica for replica in self.replicas}
        self._look_now = {replica.url: asyncio.Event() for replica in self.replicas}
        self._tasks: list[asyncio.Task[None]] = []
        self._joined = False

    def start(self) -> None:
        """Watch every replica."""
        self._tasks = [asyncio.create_task(self._watch(replica), name=replica.url) for replica in self.replicas]

    async def close(self) -> None:
        """Stop watching and leave every stream."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for replica in self.replicas:
            await replica.close()

    @property
    def lanes(self) -> Iterator[Lane]:
        """Every lane of every replica."""
        return (lane for replica in self.replicas for lane in replica.lanes)

    def replica(self, url: str) -> Replica:
        """The replica at a base URL.

        Raises:
            KeyError: it is not of this fleet.
        """
        return self._by_url[url]

    @property
    def ready(self) -> bool:
        """Whether requests should come: a healthy replica, and, the first time, nothing still on its way in.

        At the start that means every replica was looked at once and every stream has caught up or failed to.
        """
        if not self._joined:
            looked = all(replica.health.probed for replica in self.replicas)
            self._joined = looked and not any(lane.joining for lane in self.lanes)
        return self._joined and any(replica.healthy for replica in self.replicas)

    def report(self, url: str, failure: Failure) -> None:
        """A request could not be handed to a replica: count it, and look at the replica now."""
        self._by_url[url].health.failed(failure)
        self._look_now[url].set()

    async def _watch(self, replica: Replica) -> None:
        look_now = self._look_now[replica.url]
        looks = 0
        while True:
            look_now.clear()
            try:
                await self._look(replica, thorough=looks % IDENTIFY_EVERY == 0)
                if self._after_look is not None:
                    self._after_look(replica)
            except Exception:  # the top of the task: one replica's surprise must not end its watch
                self.watch_errors += 1
                _LOG.exception("%s: the watch ran into an error", replica.url)
            looks += 1
            await asyncio.sleep(MIN_PAUSE)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(look_now.wait(), self._interval - MIN_PAUSE)

    async def _look(self, replica: Replica, *, thorough: bool) -> None:
        before, broken = replica.health.state, replica.health.broken
        known = None if thorough or before is not State.HEALTHY else replica.identity
        try:
            url = replica.url
            found = await (self._prober.identify(url) if known is None else self._prober.refresh(url, known))
        except ProbeError as error:
            replica.trouble = str(error)
            replica.health.failed(error.failure)
            if replica.health.state is State.GONE and before is not State.GONE:
                await replica.vanish()
        else:
            replica.trouble = None
            await replica.adopt(found, anew=broken)
            replica.health.succeeded()
        if replica.health.state is not before:
            _LOG.info(
                "%s is %s%s", replica.url, replica.health.state, f": {replica.trouble}" if replica.trouble else ""
            )
