"""The fleet: all replicas, each watched by a task that probes it and keeps its lanes in line.

A replica need not be there when the router starts, may go, and may come back as something else; the watch finds out
within one probe interval. The proxy reports what it runs into, so that a dead replica is looked at sooner. Replicas
may be added and removed while all this runs.
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
from router.fleet.roster import Roster

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
        self,
        urls: Iterable[str],
        *,
        make_replica: Callable[[str], Replica],
        prober: Prober,
        interval: float,
        after_look: AfterLook | None = None,
    ) -> None:
        self.watch_errors = 0
        self._prober = prober
        self._interval = interval
        self._after_look = after_look
        self._make_replica = make_replica
        self._by_url: dict[str, Replica] = {}
        self._look_now: dict[str, asyncio.Event] = {}
        self.roster = Roster()
        for url in urls:
            self._enter(url)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._joined = False

    def start(self) -> None:
        """Watch every replica."""
        for replica in self.replicas:
            self._begin_watch(replica)

    async def close(self) -> None:
        """Stop watching and leave every stream."""
        for url in list(self._by_url):
            await self.remove(url)

    def add(self, url: str) -> Replica:
        """Take a replica in and begin to watch it; the one that is there where the fleet has it already."""
        if url in self._by_url:
            return self._by_url[url]
        replica = self._enter(url)
        self._begin_watch(replica)
        return replica

    def _enter(self, url: str) -> Replica:
        replica = self._by_url[url] = self._make_replica(url)
        self._look_now[url] = asyncio.Event()
        self.roster.enter(replica)
        replica.when_changed = self.roster.update
        return replica

    async def remove(self, url: str) -> None:
        """Send nothing more to a replica, leave its streams and forget its blocks; what runs there runs on.

        Raises:
            KeyError: it is not of this fleet.
        """
        replica = self._by_url.pop(url)
        self.roster.leave(replica)
        del self._look_now[url]
        task = self._tasks.pop(url, None)
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await replica.close()

    def _begin_watch(self, replica: Replica) -> None:
        self._tasks[replica.url] = asyncio.create_task(self._watch(replica), name=replica.url)

    @property
    def replicas(self) -> list[Replica]:
        """Every replica."""
        return list(self._by_url.values())

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

    def admits(self, lane: Lane, *, now: float) -> bool:
        """Whether a request may be sent to a lane: its replica is of this fleet, is healthy, and its breaker agrees."""
        replica = self._by_url.get(lane.url)
        return replica is not None and replica.healthy and replica.breaker.admits(now=now) and lane in replica.lanes

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
        """A request could not be handed to a replica: count it, and look at the replica now.

        One that was removed meanwhile concerns nobody.
        """
        if url in self._by_url:
            self._by_url[url].health.failed(failure)
            self.roster.update(self._by_url[url])
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
                async with asyncio.timeout(self._interval - MIN_PAUSE):  # wait_for may swallow the end of the watch
                    await look_now.wait()

    async def _look(self, replica: Replica, *, thorough: bool) -> None:
        before, broken = replica.health.state, replica.health.broken
        known = None if thorough or before is not State.HEALTHY else replica.identity
        try:
            url = replica.url
            found = await (self._prober.identify(url) if known is None else self._prober.refresh(url, known))
        except ProbeError as error:
            replica.trouble = str(error)
            replica.health.failed(error.failure)
            self.roster.update(replica)
            if replica.health.state is State.GONE and before is not State.GONE:
                await replica.vanish()
        else:
            replica.trouble = None
            await replica.adopt(found, anew=broken)
            replica.health.succeeded()
            self.roster.update(replica)
        if replica.health.state is not before:
            _LOG.info(
                "%s is %s%s", replica.url, replica.health.state, f": {replica.trouble}" if replica.trouble else ""
            )
