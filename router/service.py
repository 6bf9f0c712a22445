"""One router, put together: every part built once, from a config, and handed to the parts that need it."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
from prometheus_client import CollectorRegistry

from contract.descriptor import LaneAddress
from router.choice.chooser import Chooser
from router.choice.policy import APPROX, POLICIES, memory_of
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
from router.intake.subscriber import Context, Subscriber
from router.proof.diagnosis import Diagnosis

__all__ = ["serving"]


@asynccontextmanager
async def serving(config: RouterConfig, *, tokenizer: Tokenizer | None) -> AsyncIterator[str]:
    """A running router; the URL it listens on. ``tokenizer`` is what ``config.tokenizer`` names, loaded.

    On the way out requests end first, while their engines are still known; then streams and connections.

    Raises:
        BindError: the address cannot be listened on.
    """
    index = BlockIndex()
    diagnosis = Diagnosis(index)
    session = engine_session(connect_timeout=config.connect_timeout, idle_timeout=config.idle_timeout)
    with Context() as context:
        async with session:
            fleet = _make_fleet(config, session, index, context, diagnosis)
            api = _make_api(config, session, fleet, index, diagnosis, tokenizer)
            server = HttpServer(api, host=config.host, port=config.port, drain_timeout=config.drain_timeout)
            try:
                url = await server.start()
                fleet.start()
                yield url
            finally:
                await server.close()
                await fleet.close()


def _make_fleet(
    config: RouterConfig,
    session: aiohttp.ClientSession,
    index: BlockIndex,
    context: Context,
    diagnosis: Diagnosis,
) -> Fleet:
    def subscribe(address: LaneAddress, topic: str, handle: LaneHandle) -> Subscriber:
        return Subscriber(address=address, topic=topic, index=index, handle=handle, context=context)

    def make_lane(url: str, dp_rank: int, speed: ReplicaSpeed) -> Lane:
        return Lane(
            url=url,
            dp_rank=dp_rank,
            index=index,
            speed=speed,
            recent=memory_of(config.policy),
            subscribe=subscribe,
        )

    speed = FleetSpeed()
    replicas = [Replica(url, speed=speed.replica(), make_lane=make_lane) for url in config.urls]
    return Fleet(
        replicas,
        prober=Prober(session, timeout=config.probe_timeout),
        interval=config.probe_interval,
        after_look=diagnosis.review,
    )


def _make_api(
    config: RouterConfig,
    session: aiohttp.ClientSession,
    fleet: Fleet,
    index: BlockIndex,
    diagnosis: Diagnosis,
    tokenizer: Tokenizer | None,
) -> Api:
    remote = RemoteTokenizer(session, timeout=config.probe_timeout) if config.tokenizer == AUTO else None
    tokenization = Tokenization(fixed=tokenizer, remote=remote)
    believed = None if config.policy == APPROX else index
    chooser = Chooser(believed, POLICIES[config.policy](), seed=config.seed, now=time.monotonic())
    registry = CollectorRegistry()
    metrics = RequestMetrics(registry)
    registry.register(FleetMetrics(fleet, index, tokenization, diagnosis=diagnosis))
    return Api(
        session=session,
        fleet=fleet,
        index=index,
        diagnosis=diagnosis,
        chooser=chooser,
        planner=Planner(fleet, tokenization),
        relay=Relay(session, fleet=fleet, chooser=chooser, metrics=metrics, expose_replica=config.expose_replica),
        metrics=metrics,
        registry=registry,
        max_body_bytes=config.max_body_bytes,
        body_timeout=config.body_timeout,
    )
