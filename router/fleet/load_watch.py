"""Asks engines how busy they are, and tells their lanes' books; for fleets that others send requests to as well."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Self

import aiohttp

from router.choice.engine_account import AccountError, read_loads, read_vllm_metrics
from router.choice.load import EngineLoad
from router.fleet.fleet import Fleet
from router.fleet.identity import Engine
from router.fleet.replica import Replica

__all__ = ["LoadWatch"]

_LOG = logging.getLogger(__name__)
INTERVAL = 0.5
MAX_ANSWER_BYTES = 8 * 1024 * 1024


class LoadWatch:
    """A context: while it lasts every healthy replica is asked each ``INTERVAL`` seconds.

    ``failures`` counts asks that brought nothing; the account of such an engine grows old and stops counting.
    """

    def __init__(self, session: aiohttp.ClientSession, fleet: Fleet, *, timeout: float) -> None:
        self.failures = 0
        self._session = session
        self._fleet = fleet
        self._timeout = aiohttp.ClientTimeout(total=timeout)
        self._task: asyncio.Task[None] | None = None
        self._told: set[str] = set()

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._watch(), name="engine loads")
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None, "left only after it was entered"
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _watch(self) -> None:
        while True:
            replicas = [replica for replica in self._fleet.replicas if replica.healthy]
            try:
                await asyncio.gather(*map(self._look, replicas))
            except Exception:  # the top of the task: one answer's surprise must not end the watch
                self.failures += 1
                _LOG.exception("asking engines for their loads ran into an error")
            await asyncio.sleep(INTERVAL)

    async def _look(self, replica: Replica) -> None:
        try:
            loads = await self._ask(replica)
        except (AccountError, aiohttp.ClientError, TimeoutError, OSError) as error:
            self.failures += 1
            self._tell(replica.url, error)
            return
        now = time.monotonic()
        for lane in replica.lanes:
            if lane.dp_rank in loads:
                lane.load.report(loads[lane.dp_rank], now=now)

    async def _ask(self, replica: Replica) -> dict[int, EngineLoad]:
        vllm = replica.identity is not None and replica.identity.engine == Engine.VLLM
        path, read = ("/metrics", read_vllm_metrics) if vllm else ("/v1/loads", read_loads)
        async with self._session.get(replica.url + path, timeout=self._timeout) as response:
            if response.status != 200:
                raise AccountError(f"{path} answers {response.status}")
            return read(await response.content.read(MAX_ANSWER_BYTES))

    def _tell(self, url: str, error: Exception) -> None:
        """Once for each replica."""
        if url not in self._told and len(self._told) < 1000:
            self._told.add(url)
            _LOG.info("%s does not say how busy it is: %s", url, error or type(error).__name__)
