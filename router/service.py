"""One router, put together: every part built once, from a config, and handed to the parts that need it."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from functools import partial

import aiohttp
from prometheus_client import CollectorRegistry

from contract.descriptor import LaneAddress
from router.choice.affinity import Affinity
from router.choice.chooser import Chooser
from router.choice.policy import APPROX, POLICIES, memory_of
from router.choice.remote_tokenizer import RemoteTokenizer
from router.choice.send_ids import SendIds
from router.choice.speed import FleetSpeed, ReplicaSpeed
from router.choice.texts import Tokenizer
from router.choice.tokenization import AUTO, Tokenization
from router.config import NO_AFFINITY, RouterConfig
from router.fleet.breaker import Breaker
from router.fleet.fleet import Fleet
from router.fleet.lane import Lane
from router.fleet.load_watch import LoadWatch
from router.fleet.loads import Loads
from router.fleet.prober import Prober
from router.fleet.replica import Replica
from router.front.admission import Admission
from router.front.api import Api
from router.front.body import BodyReader
from router.front.changes import Changes
from router.front.connections import Connections
from router.front.headers import for_engine
from router.front.keys import Keys
from router.front.metrics import FleetMetrics, RequestMetrics
from router.front.operations import Operations
from router.front.overview import OwnOverview, WholeOverview
from router.front.plan import Planner
from router.front.reader import RequestReader
from router.front.receipts import Receipts
from router.front.relay import Relay
from router.front.routed import Routed
from router.front.server import HttpServer, engine_session
from router.front.siblings import Siblings
from router.front.wishes import WishReader
from router.intake.index import BlockIndex, LaneHandle
from router.intake.subscriber import Subscriber
from router.proof.diagnosis import Diagnosis
from router.proof.fault import Code
from router.trace.recorder import Recorder
from router.trace.request_recorder import RequestRecorder
from router.trace.taped_stream import TapedSubscriber
from router.workers.joined import joined, siblings_of
from router.workers.lifeline import Lifeline

__all__ = ["serving", "watching"]


@asynccontextmanager
async def serving(
    config: RouterConfig,
    *,
    tokenizer: Tokenizer | None,
    recorder: Recorder | None = None,
    lifeline: Lifeline | None = None,
) -> AsyncIterator[str]:
    """A running router; the URL it listens on. ``tokenizer`` is what ``config.tokenizer`` names, loaded.

    With a ``lifeline`` it is one of several workers, and shares its port with them.

    On the way out requests end first, while their engines are still known; then the recording, then streams and
    connections, whose end says nothing of the engines.

    Raises:
        BindError: the address cannot be listened on.
    """
    index = BlockIndex()
    diagnosis = Diagnosis(index, expected={Code.EVENTS_SILENT} if config.policy == APPROX else ())
    make_session = partial(
        engine_session,
        connect_timeout=config.connect_timeout,
        first_byte_timeout=config.first_byte_timeout,
        replica_key=config.replica_key,
    )
    async with make_session(keep_connections=True) as session, make_session(keep_connections=False) as fresh:
        fleet = _make_fleet(config, session, index, diagnosis, recorder)
        changes = Changes(fleet, diagnosis, want=None if lifeline is None else lifeline.want)
        siblings = None if lifeline is None else siblings_of(lifeline, config)
        server, overview = _make_server(
            config, session, fresh, fleet, index, diagnosis, tokenizer, recorder, changes, siblings
        )
        try:
            async with _among_siblings(fleet, lifeline, siblings, overview, changes):
                url = await server.start()
                if lifeline is None:
                    fleet.start()
                async with _watching_loads(config, session, fleet):
                    yield url
        finally:
            await server.close()
            if recorder is not None:
                recorder.end()
            await fleet.close()


@asynccontextmanager
async def watching(config: RouterConfig, *, recorder: Recorder) -> AsyncIterator[Fleet]:
    """A fleet that is watched and recorded, and that nothing is routed to."""
    index = BlockIndex()
    async with engine_session(
        connect_timeout=config.connect_timeout,
        first_byte_timeout=config.first_byte_timeout,
        replica_key=config.replica_key,
        keep_connections=True,
    ) as session:
        fleet = _make_fleet(config, session, index, Diagnosis(index), recorder)
        try:
            fleet.start()
            yield fleet
        finally:
            recorder.end()
            await fleet.close()


def _among_siblings(
    fleet: Fleet, lifeline: Lifeline | None, siblings: Siblings | None, overview: OwnOverview, changes: Changes
) -> AbstractAsyncContextManager[object]:
    if lifeline is None or siblings is None:
        return nullcontext()
    return joined(lifeline, siblings, fleet, overview=overview, changes=changes)


def _watching_loads(
    config: RouterConfig, session: aiohttp.ClientSession, fleet: Fleet
) -> AbstractAsyncContextManager[object]:
    return LoadWatch(session, fleet, timeout=config.probe_timeout) if config.engine_load else nullcontext()


def _make_fleet(
    config: RouterConfig,
    session: aiohttp.ClientSession,
    index: BlockIndex,
    diagnosis: Diagnosis,
    recorder: Recorder | None,
) -> Fleet:
    def subscribe(url: str, address: LaneAddress, topic: str, handle: LaneHandle) -> Subscriber:
        make = Subscriber if recorder is None else partial(TapedSubscriber, recorder, url=url)
        return make(address=address, topic=topic, index=index, handle=handle)

    def make_lane(url: str, dp_rank: int, speed: ReplicaSpeed) -> Lane:
        return Lane(
            url=url,
            dp_rank=dp_rank,
            index=index,
            speed=speed,
            load=loads.of(url, dp_rank),
            recent=memory_of(config.policy),
            subscribe=partial(subscribe, url),
        )

    def make_replica(url: str) -> Replica:
        breaker = Breaker(pause=config.probe_interval)
        return Replica(url, speed=speed.replica(), breaker=breaker, make_lane=make_lane)

    def after_look(replica: Replica) -> None:
        diagnosis.review(replica)
        if recorder is not None:
            recorder.looked(replica)

    speed, loads = FleetSpeed(), Loads()
    return Fleet(
        config.urls,
        make_replica=make_replica,
        prober=Prober(session, timeout=config.probe_timeout, overrides=config.overrides),
        interval=config.probe_interval,
        after_look=after_look,
    )


def _make_server(
    config: RouterConfig,
    session: aiohttp.ClientSession,
    fresh: aiohttp.ClientSession,
    fleet: Fleet,
    index: BlockIndex,
    diagnosis: Diagnosis,
    tokenizer: Tokenizer | None,
    recorder: Recorder | None,
    changes: Changes,
    siblings: Siblings | None,
) -> tuple[HttpServer, OwnOverview]:
    remote = RemoteTokenizer(session, timeout=config.probe_timeout) if config.tokenizer == AUTO else None
    tokenization = Tokenization(fixed=tokenizer, remote=remote, send_ids=SendIds(config.send_token_ids))
    believed = None if config.policy == APPROX else index
    affinity = None if config.affinity == NO_AFFINITY else Affinity(seconds=config.affinity_seconds)
    policy = POLICIES[config.policy]()
    chooser = Chooser(believed, policy, seed=config.seed, now=time.monotonic(), affinity=affinity)
    registry = CollectorRegistry()
    metrics = RequestMetrics(registry)
    registry.register(FleetMetrics(fleet, index, tokenization, diagnosis=diagnosis))
    planner = Planner(fleet, tokenization)
    wishes = WishReader(session_header=config.session_header)
    to_engine = partial(for_engine, authorization=not config.replica_key and not config.api_keys)
    tape = None if recorder is None else RequestRecorder(recorder, with_tokens=config.trace_tokens)
    receipts = Receipts(limit=config.receipts, place=None if siblings is None else siblings.own_place, tape=tape)
    overview = OwnOverview(fleet, index, diagnosis, receipts=receipts, registry=registry)
    bodies = BodyReader(max_bytes=config.max_body_bytes, timeout=config.body_timeout)
    reader = RequestReader(bodies, max_ids=config.max_prompt_ids)
    keys = Keys(clients=config.api_keys, admin=config.admin_key or None, loopback=config.loopback)
    relay = Relay(
        session,
        fresh,
        fleet=fleet,
        chooser=chooser,
        metrics=metrics,
        to_engine=to_engine,
        idle_timeout=config.idle_timeout,
        expose_replica=config.expose_replica,
    )
    admission = Admission(limit=config.max_in_flight)
    metrics.admits_by(admission)
    api = Api(
        session=session,
        to_engine=to_engine,
        fleet=fleet,
        index=index,
        chooser=chooser,
        wishes=wishes,
        planner=planner,
        routed=Routed(
            admission=admission,
            reader=reader,
            wishes=wishes,
            planner=planner,
            relay=relay,
            receipts=receipts,
            metrics=metrics,
        ),
        operations=Operations(fleet=fleet, changes=changes, index=index, diagnosis=diagnosis, keys=keys, bodies=bodies),
        keys=keys,
        bodies=bodies,
        reader=reader,
        overview=overview if siblings is None else WholeOverview(overview, siblings),
    )
    connections = Connections(
        serve=api.serve,
        bodies=bodies,
        head_timeout=config.head_timeout,
        write_timeout=config.write_timeout,
        closed=metrics.closed_connection,
    )
    server = HttpServer(
        api,
        connections=connections,
        host=config.host,
        port=config.port,
        shared=siblings is not None,
        drain_timeout=config.drain_timeout,
    )
    return server, overview
