"""One lane's event stream off the network: a live connection, a replay connection where one is wanted, and the stream.

A shell: ``stream`` decides, ``orders`` are carried out on the index, ``replays`` asks for what is missing; this carries
live batches to them. It subscribes before a replay is asked for, and verifies after every connect, because an engine
that was restarted behind its endpoint is first of all a connection that came back.

Decisions are taken as frames come, and what they order is done in that order. While orders wait, nothing more is taken
in: it stays with the engine. What has come in is taken in one turn, within a bound; then the loop is free for others.
Many subscribers run in one event loop.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Sequence

import msgspec

from contract.descriptor import LaneAddress
from contract.endpoint import EndpointError
from contract.framing import FramingError, parse_live
from router.intake.index import BlockIndex, LaneHandle
from router.intake.link import RETRY_SECONDS, Link, reach, require_reachable
from router.intake.orders import Orders
from router.intake.replays import Replays
from router.intake.stream import Action, AskReplay, LaneStream
from router.intake.stream_report import StreamState, SubscriberLimits, SubscriberStatus
from router.intake.zmtp import subscription

__all__ = ["SubscribeError", "Subscriber", "SubscriberLimits", "SubscriberStatus"]

_LOG = logging.getLogger(__name__)
_BATCHES_A_TURN = 16


class SubscribeError(Exception):
    """An endpoint that cannot be subscribed to; the message names it."""


class Subscriber:
    """Keeps one lane of the index equal to what its engine publishes. ``start`` once, ``close`` once."""

    def __init__(
        self,
        *,
        address: LaneAddress,
        topic: str,
        index: BlockIndex,
        handle: LaneHandle,
        limits: SubscriberLimits | None = None,
        clock: Callable[[], float] = time.time,
        stream: LaneStream | None = None,
    ) -> None:
        """``topic`` is a prefix; an empty one takes everything.

        ``stream`` is handed in, fresh, by whoever wants to see what it is told.
        """
        self._endpoint = address.endpoint
        self._replay_endpoint = address.replay_endpoint
        self._topic = topic
        self._limits = limits or SubscriberLimits()
        self._clock = clock
        self._stream = stream or LaneStream(can_replay=address.replay_endpoint is not None, limits=self._limits.stream)
        self._orders = Orders(index, handle, on_done=self._drain, on_fault=self._failed)
        self._replays = Replays(
            self._stream,
            self._limits,
            perform=self._perform,
            free=self._orders.free,
            on_malformed=self._note_malformed,
        )
        self._link: Link | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._failure: str | None = None
        self._connected = False
        self._connects = 0
        self._malformed = 0

    @property
    def status(self) -> SubscriberStatus:
        """The lane's stream now."""
        fields = msgspec.structs.asdict(self._stream.status)
        if self._failure is not None:
            fields |= {"state": StreamState.UNTRUSTED, "reason": self._failure}
        return SubscriberStatus(**fields, connected=self._connected, connects=self._connects, malformed=self._malformed)

    @property
    def batches(self) -> int:
        """Batches applied."""
        return self._stream.batches

    async def start(self) -> None:
        """Connect and follow the stream from now on; returns before anything is connected.

        Raises:
            SubscribeError: the endpoint is none that can be connected to.
        """
        assert not self._tasks, "a subscriber is started once"
        try:
            require_reachable(self._endpoint)
        except EndpointError as error:
            raise SubscribeError(f"cannot subscribe to {self._endpoint}: {error}") from None
        self._spawn("reader", self._follow())
        if self._replay_endpoint is not None:
            self._spawn("replay", self._replays.serve(self._replay_endpoint))

    async def close(self) -> None:
        """Stop and hang up; the lane's blocks stay in the index. A second call does nothing."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        self._hang_up()

    def _hang_up(self) -> None:
        link, self._link = self._link, None
        self._connected = False
        self._orders.close()
        if link is not None:
            link.close()

    def _spawn(self, name: str, work: Coroutine[None, None, None]) -> None:
        self._tasks.append(asyncio.create_task(self._guard(work), name=f"{name} {self._endpoint}"))

    async def _guard(self, work: Coroutine[None, None, None]) -> None:
        """The top of a task: a fault of ours must show on the lane, not vanish with the task."""
        try:
            await work
        except Exception as error:
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        self._failure = f"following {self._endpoint} failed: {error!r}"
        _LOG.error("%s", self._failure, exc_info=error)
        for task in self._tasks:
            task.cancel()
        self._hang_up()

    # Live

    async def _follow(self) -> None:
        while True:
            link = self._link = await reach(
                self._endpoint,
                "SUB",
                most_bytes=self._limits.message_bytes,
                wake=self._drain,
                on_refusal=self._note_malformed,
            )
            link.send(subscription(self._topic))
            self._on_connected()
            self._drain()
            await link.closed
            self._connected = False
            if link.why is not None:
                self._note_malformed(link.why)
            await asyncio.sleep(RETRY_SECONDS)

    def _on_connected(self) -> None:
        self._connected = True
        self._connects += 1
        self._perform(self._stream.connected())
        self._replays.settle()

    def _drain(self) -> None:
        """Take in what is at hand, within a bound; while orders wait, nothing: their end comes here again."""
        link, orders = self._link, self._orders
        try:
            for _ in range(_BATCHES_A_TURN):
                frames = None if link is None or orders.busy else link.next()
                if frames is None:
                    return
                self._perform(self._heard(frames))
        except Exception as error:  # the top of a turn
            self._failed(error)
        else:
            asyncio.get_running_loop().call_soon(self._drain)

    def _heard(self, frames: Sequence[bytes]) -> Sequence[Action]:
        try:
            frame = parse_live(frames)
        except FramingError as error:
            self._note_malformed(error)
            return ()
        return self._stream.live(frame, now=self._clock())

    def _perform(self, actions: Sequence[Action]) -> None:
        if len(actions) > _BATCHES_A_TURN:
            self._orders.defer()
        for action in actions:
            if isinstance(action, AskReplay):
                self._replays.ask(action)
            else:
                self._orders.do(action)

    def _note_malformed(self, error: Exception) -> None:
        self._malformed += 1
        if self._malformed == 1:
            _LOG.warning("%s sends what cannot be used, which is counted: %s", self._endpoint, error)
