"""``kvsteer-engine``: joins model, scheduler, publisher and HTTP server into one process, and ends it in order.

The only place where the engine meets the publisher. Ready replicas are announced on stdout, one line each:
``kvsteer-engine ready http://HOST:PORT``. What ends the process early is one line on stderr, and status 1.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from typing import NoReturn

import msgspec

from contract.events import Event
from contract.kv_events_config import KVEventsConfig
from engine.config import ConfigError, EngineConfig
from engine.flags import PROGRAM, parse_flags
from engine.huge_pages import ask_for_huge_pages
from engine.loop import EngineLoop
from engine.model.catalogue import ServedModel, find_model
from engine.model.config import ModelError
from engine.parallel.follow import follow, launch
from engine.parallel.lifeline import end_with_parent
from engine.parallel.rank_process import leave
from engine.parallel.role import Follower, Head, Launcher, Role, role_of
from engine.parallel.seat import Cluster, SeatError
from engine.parallel.world import CollectiveError
from engine.ready import encode_ready, engine_message
from engine.runner.process_runner import ProcessRunner
from engine.runner.start import StartError, rank_plan, start_runner
from engine.scheduler import Limits, Scheduler
from engine.server.http_server import HttpServer
from engine.server.lanes import Lane
from engine.server.mailroom import Mailroom
from engine.server.replica import Replica
from program.command_line import BAD_FLAGS_STATUS, complain
from program.compiled_cores import say_what_is_plain
from program.standard_streams import fill_standard_streams
from program.stop_signals import on_stop_signals
from publisher import EventPublisher, PublisherError, Snapshot

__all__ = ["main"]

_LOG = logging.getLogger("engine")
_CORES = ("contract._keys", "engine.kernels._paged_decode", "engine.kernels._narrow_product")
_SNAPSHOT_SECONDS = 10.0
_WATCH_SECONDS = 0.2
_FAILED_GRACE_SECONDS = 1.0
"""To write answers that say why: an engine that failed finishes no requests."""
_FOLLOWERS_STAY_SECONDS = 5.0
"""On top of the grace: ranks are closed after the requests."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the process until it is told to end: its exit status."""
    argv = sys.argv[1:] if argv is None else argv
    fill_standard_streams()
    config = parse_flags(argv)
    try:
        role = role_of(config.nodes, size=config.tp_size, environ=os.environ)
        if role != Head():
            config.check_one_engine()
    except (SeatError, ConfigError) as error:
        return complain(PROGRAM, str(error), status=BAD_FLAGS_STATUS)
    _log_to_stderr(config.log_level)
    ask_for_huge_pages()
    try:
        complaint = _be(role, config, argv)
    except ConfigError as error:
        return complain(PROGRAM, str(error), status=BAD_FLAGS_STATUS)
    except (StartError, ModelError, PublisherError, CollectiveError, OSError) as error:
        complaint = str(error)
    return 0 if complaint is None else complain(PROGRAM, complaint, status=1)


def _be(role: Role, config: EngineConfig, argv: Sequence[str]) -> str | None:
    """What this process is for; None if all went well, else what did not."""
    if isinstance(role, Launcher):
        return launch(role, [sys.executable, "-m", "engine", *argv])
    model = find_model(config.model_path)
    config = config.fitted_to(model)
    if isinstance(role, Follower):
        _follow(role, config, model)
    if role.launched:
        end_with_parent(signal.SIGTERM, parent=os.getppid())
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # so that it ends us while we start, as SIGTERM does
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(_serve(config, model, role.cluster))


def _follow(role: Follower, config: EngineConfig, model: ServedModel) -> NoReturn:
    plan, grace = rank_plan(config, model), _FOLLOWERS_STAY_SECONDS + config.shutdown_grace_seconds
    leave(follow(role, build=plan, device=plan.device, timeout=config.rank_timeout, grace=grace, program=PROGRAM))


def _log_to_stderr(level: str) -> None:
    logging.basicConfig(level=level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    # Its errors are traces of bytes that are no HTTP, which any client can send; our handlers' own are logged by us.
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)
    say_what_is_plain(_LOG, _CORES)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's event loop where it is installed; None is asyncio's own."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


async def _serve(config: EngineConfig, model: ServedModel, cluster: Cluster | None) -> str | None:
    """Serve until a signal comes (None) or a lane dies (why)."""
    servers: list[HttpServer] = []
    grace = min(config.shutdown_grace_seconds, _FAILED_GRACE_SECONDS)
    with ExitStack() as lanes:
        try:
            mailroom = Mailroom(asyncio.get_running_loop())
            replicas = [
                lanes.enter_context(_replica(config, model, index, mailroom, cluster))
                for index in range(config.replicas)
            ]
            stop = on_stop_signals()
            servers += map(HttpServer, replicas)
            for index, server in enumerate(servers):
                await server.listen(host=config.host, port=config.http_port(index))
            print(*(f"{PROGRAM} ready {server.url}" for server in servers), sep="\n", flush=True)
            complaint = await _until_over(stop, servers)
            if complaint is None:
                grace = config.shutdown_grace_seconds
            return complaint
        finally:
            await asyncio.gather(*(server.drain(grace) for server in servers))
            await asyncio.to_thread(lanes.close)  # whoever still waits is told that the engine ends
            await asyncio.gather(*(server.close() for server in servers))


async def _until_over(stop: asyncio.Event, servers: Sequence[HttpServer]) -> str | None:
    while not stop.is_set():
        for server in servers:
            if server.replica.failure is not None:
                return f"the engine behind {server.url} has stopped: {server.replica.failure}"
        with suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), _WATCH_SECONDS)
    return None


class _LanePublisher:
    """One lane's publisher as its loop and its server see it."""

    def __init__(self, config: KVEventsConfig, *, dp_rank: int) -> None:
        self._config = config
        self._loop: EngineLoop | None = None
        self._publisher = EventPublisher(config, dp_rank=dp_rank, dialect=config.dialect, snapshot=self._snapshot)
        self.publish = self._publisher.publish
        self.close = self._publisher.close

    @property
    def last_seq(self) -> int:
        return self._publisher.last_seq

    @property
    def alive(self) -> bool:
        return self._publisher.alive

    @property
    def as_bound(self) -> KVEventsConfig:
        """The config with the endpoints that this rank really has."""
        publisher = self._publisher
        return msgspec.structs.replace(
            self._config, endpoint=publisher.endpoint, replay_endpoint=publisher.replay_endpoint
        )

    def counters(self) -> Mapping[str, int]:
        return msgspec.structs.asdict(self._publisher.counters)

    def answer_old_replays_from(self, loop: EngineLoop) -> None:
        """Ask ``loop`` what it holds when a replay reaches further back than the log."""
        self._loop = loop

    def _snapshot(self) -> Snapshot:
        if self._loop is None:
            raise StartError("the engine has not started yet")
        holding = self._loop.snapshot(lambda: self.last_seq).result(_SNAPSHOT_SECONDS)
        return Snapshot(holding.seq, holding.events)


@contextmanager
def _replica(
    config: EngineConfig, model: ServedModel, index: int, mailroom: Mailroom, cluster: Cluster | None
) -> Iterator[Replica]:
    """One replica with all its lanes at work. Leaving it ends the lanes, then the publishers, which send the rest."""
    events = config.events_config(index)
    ranks = range(config.dp_size)
    with ExitStack() as stack:
        publishers: list[_LanePublisher] = []
        if events is not None:
            publishers += (stack.enter_context(closing(_LanePublisher(events, dp_rank=rank))) for rank in ranks)
        lanes = [
            stack.enter_context(_lane(config, model, rank, publishers[rank] if publishers else None, cluster))
            for rank in ranks
        ]
        bound = publishers[0].as_bound if publishers else None
        yield Replica(config, model, lanes=lanes, mailroom=mailroom, events=bound)


@contextmanager
def _lane(
    config: EngineConfig,
    model: ServedModel,
    dp_rank: int,
    publisher: _LanePublisher | None,
    cluster: Cluster | None,
) -> Iterator[Lane]:
    """One lane at work. Leaving it ends its thread, then its ranks."""
    publish = _nowhere if publisher is None else publisher.publish
    with closing(start_runner(config, model, cluster=cluster)) as runner:
        loop = EngineLoop(scheduler=_scheduler(config, model), runner=runner, publish=publish)
        with closing(loop):
            loop.start()
            ranks: list[bytes] = []
            if isinstance(runner, ProcessRunner):
                runner.on_loss(loop.fail)
                ranks = runner.ready
            if publisher is not None:
                publisher.answer_old_replays_from(loop)
            ready = engine_message(config.cache_groups(model).advertised_width(), ranks)
            yield Lane(loop, dp_rank=dp_rank, events=publisher, ready=encode_ready(ready))


def _nowhere(events: Sequence[Event]) -> None:
    """Where the events of an engine go that has none."""


def _scheduler(config: EngineConfig, model: ServedModel) -> Scheduler:
    limits = Limits(
        context_length=config.longest_sequence,
        max_running=config.max_running_requests,
        max_waiting=config.max_queued_requests,
        prefill_tokens=config.chunked_prefill_size,
    )
    return Scheduler(
        geometry=config.geometry,
        total_blocks=config.total_blocks,
        limits=limits,
        eos_token_ids=model.eos_token_ids,
        states=config.state_room(model),
    )


if __name__ == "__main__":
    sys.exit(main())
