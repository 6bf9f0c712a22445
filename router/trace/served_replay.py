"""Serves a trace: each recorded replica gets an HTTP face and its lanes' sockets, and plays to whoever subscribes.

A replica begins to play when all its lanes have a subscriber, and goes on answering replays when it has played. What
the recorder had heard live is sent live, gaps and restarts included; what it had to ask for is in the replay only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec

from contract.descriptor import Descriptor
from contract.endpoint import Address
from contract.framing import Frame
from router.trace.chunk import TraceFileError
from router.trace.in_order import LanesInOrder
from router.trace.pace import paced
from router.trace.publication import Context, Publication, publications
from router.trace.reader import TraceReader
from router.trace.recorded_replica import RecordedReplica, recorded_replicas
from router.trace.records import FrameHeard
from router.trace.saying import complain_of_damage
from router.trace.stand_in import StandIn, standing_in

__all__ = ["ServeOptions", "serve_trace"]

Say = Callable[[str], object]
DESCRIBED_PUBLISHER = "zmq"


class ServeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Where to publish and to serve HTTP from: ports in a row, 0 lets the system choose; ``speed`` as in ``paced``."""

    file: Path
    address: Address
    http_port: int
    speed: float


class _Served(msgspec.Struct, frozen=True):
    """A replica, and its lanes by rank."""

    replica: RecordedReplica
    lanes: Sequence[Publication]


async def serve_trace(options: ServeOptions, *, stop: asyncio.Event, say: Say) -> None:
    """Play until ``stop`` is set.

    Raises:
        TraceFileError: the trace cannot be read, or has nothing to play.
        PublishError, BindError: an address cannot be bound.
    """
    reader = TraceReader(options.file)
    replicas = recorded_replicas(reader)
    complain_of_damage("trace replay", reader)
    async with AsyncExitStack() as stack:
        stage = _Stage(options, stack, lanes=sum(replica.dp_size for replica in replicas))
        served = [await stage.open(replica, say=say) for replica in replicas]
        await _play_all(options, served, stop=stop, say=say)


class _Stage:
    """Opens replicas one after the other: ports in a row for all ``lanes``, those of replays behind them."""

    def __init__(self, options: ServeOptions, stack: AsyncExitStack, *, lanes: int) -> None:
        self._stack = stack
        self._context = stack.enter_context(Context())
        self._host = options.address.host
        self._port, self._http_port = options.address.port, options.http_port
        self._replay_port = self._port and self._port + lanes

    async def open(self, replica: RecordedReplica, *, say: Say) -> _Served:
        """Bind a replica's sockets, and serve its HTTP face."""
        host, count = self._host, replica.dp_size
        lanes = self._stack.enter_context(
            publications(self._context, host=host, port=self._port, replay_port=self._replay_port, count=count)
        )
        face = StandIn(
            url=replica.url,
            engine=replica.engine,
            version=replica.version,
            model=replica.model,
            descriptor=_descriptor(replica, host, lanes),
        )
        url = await self._stack.enter_async_context(standing_in(face, host=_http_host(host), port=self._http_port))
        say(f"ready {url} plays {replica.url}, ranks 0 to {count - 1} from tcp://{host}:{lanes[0].port} on")
        if self._port:
            self._port, self._replay_port = self._port + count, self._replay_port + count
        self._http_port = self._http_port and self._http_port + 1
        return _Served(replica, lanes)


def _descriptor(replica: RecordedReplica, host: str, lanes: Sequence[Publication]) -> Descriptor:
    return Descriptor(
        publisher=DESCRIBED_PUBLISHER,
        endpoint_host=host,
        endpoint_port_base=lanes[0].port,
        topic=replica.topic,
        block_size=replica.block_size,
        dp_size=replica.dp_size,
        replay_endpoint_port_base=lanes[0].replay_port,
    )


def _http_host(host: str) -> str:
    return "0.0.0.0" if host == "*" else host.strip("[]")


async def _play_all(options: ServeOptions, served: Sequence[_Served], *, stop: asyncio.Event, say: Say) -> None:
    try:
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(lane.run()) for one in served for lane in one.lanes]
            running += [tasks.create_task(_play(options, one, say)) for one in served]
            await stop.wait()
            for task in running:
                task.cancel()
    except* TraceFileError as group:  # the file was whole when it was looked through; somebody has touched it since
        raise group.exceptions[0] from None


async def _play(options: ServeOptions, served: _Served, say: Say) -> None:
    for lane in served.lanes:
        await lane.subscribed.wait()
    url, publications = served.replica.url, served.lanes
    lanes = LanesInOrder(lambda named: publications[named.dp_rank] if named.url == url else None)
    async for record in paced(TraceReader(options.file), speed=options.speed):
        await _send(lanes.feed(record))
    await _send(lanes.rest())
    say(f"played {sum(lane.sent for lane in publications)} batches of {url}; replays go on")


async def _send(heard: Iterable[tuple[Publication, FrameHeard]]) -> None:
    for lane, one in heard:
        await lane.send(Frame(one.topic, one.seq, one.payload), live=not one.replayed)
