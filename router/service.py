"""One router, put together: every part built once, from a config, and handed to the parts that need it."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

import aiohttp
from prometheus_client import CollectorRegistry

from contract.descriptor import LaneAddress
from router.choice.chooser import Chooser
from router.choice.policy import POLICIES
from router.choice.remote_tokenizer import RemoteTokenizer
from router.choice.speed import FleetSpeed, ReplicaSpeed
from router.choice.texts import Tokenizer
from router.choice.tokenization import AUTO, Tokenization
from router.config import RouterConfig
from router.fleet.fleet import Fleet
from router.fleet.lane import Lane
from router.fleet.prober import Prober
from router.fleet.replica import Replica
from router.front.api import Api
from router.front.metrics import FleetMetrics, RequestMetrics
from router.front.plan import Planner
from router.front.relay import Relay
from router.front.server import HttpServer, engine_session
from router.intake.index import BlockIndex, LaneHandle
from router.intake.subscriber import Subscriber

__all__ = ["Router"]


class Router:
    """A running router, inside its context. ``tokenizer`` is what ``config.tokenizer`` names, loaded; None: none is.

    ``url`` is where it listens.
    """

    def __init__(self, config: RouterConfig, *, tokenizer: Tokenizer | None) -> None:
        self._config = config
        self._tokenizer = tokenizer
        self._index = BlockIndex()
        self.url = ""

    async def __aenter__(self) -> Self:
        config = self._config
        self._session = engine_session(connect_timeout=config.connect_timeout, idle_timeout=config.idle_timeout)
        self._fleet = self._make_fleet(self._session)
        api = self._make_api(self._session)
        self._server = HttpServer(api, host=config.host, port=config.port, drain_timeout=config.drain_timeout)
        try:
            self.url = await self._server.start()
        except BaseException:
            await self._close()
            raise
        self._fleet.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close()

    async def _close(self) -> None:
        """Requests first, while their engines are still known; then the streams and the connections."""
        await self._server.close()
        await self._fleet.close()
        await self._session.close()

    def _make_fleet(self, session: aiohttp.ClientSession) -> Fleet:
        config, speed = self._config, FleetSpeed()
        replicas = [Replica(url, speed=speed.replica(), make_lane=self._make_lane) for url in config.urls]
        return Fleet(replicas, prober=Prober(session, timeout=config.probe_timeout), interval=config.probe_interval)

    def _make_lane(self, url: str, dp_rank: int, speed: ReplicaSpeed) -> Lane:
        return Lane(url=url, dp_rank=dp_rank, index=self._index, speed=speed, subscribe=self._subscribe)

    def _subscribe(self, address: LaneAddress, topic: str, handle: LaneHandle) -> Subscriber:
        return Subscriber(address=address, topic=topic, index=self._index, handle=handle)

    def _make_api(self, session: aiohttp.ClientSession) -> Api:
        config, fleet, registry = self._config, self._fleet, CollectorRegistry()
        remote = RemoteTokenizer(session, timeout=config.probe_timeout) if config.tokenizer == AUTO else None
        tokenization = Tokenization(fixed=self._tokenizer, remote=remote)
        chooser = Chooser(self._index, POLICIES[config.policy](), seed=config.seed, now=time.monotonic())
        metrics = RequestMetrics(registry)
        registry.register(FleetMetrics(fleet, self._index, tokenization))
        relay = Relay(session, fleet=fleet, chooser=chooser, metrics=metrics, expose_replica=config.expose_replica)
        return Api(
            session=session,
            fleet=fleet,
            index=self._index,
            chooser=chooser,
            planner=Planner(fleet, tokenization),
            relay=relay,
            metrics=metrics,
            registry=registry,
            max_body_bytes=config.max_body_bytes,
            body_timeout=config.body_timeout,
        )
