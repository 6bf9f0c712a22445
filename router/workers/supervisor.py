"""The parent of a router's workers: starts them, starts again what dies, ends them all. It serves nothing itself."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import tempfile
from collections.abc import Callable

from program.stop_signals import on_stop_signals
from router.config import RouterConfig
from router.front.server import BindError
from router.workers.messages import FleetIs, FromWorker, Hello, Listening, Wanted, encode_line
from router.workers.recordings import check_traces, own_trace
from router.workers.reservation import reserved_port
from router.workers.slot import Slot

__all__ = ["supervise"]

_LOG = logging.getLogger(__name__)
MAX_FOLDER_CHARS = 90
"""A local socket's whole name has at most 107 bytes."""

GRACE_SECONDS = 10.0
"""Beyond its drain timeout, until a worker that was told to end is killed."""


def supervise(config: RouterConfig, *, ready: Callable[[str], None]) -> None:
    """Keep ``config.workers`` routers on one port until SIGTERM or SIGINT; ``ready`` is told the URL once all listen.

    Raises:
        BindError: the address cannot be listened on, or the workers have nowhere to listen for each other.
        TraceFileError: a worker's trace cannot be written.
        WorkerLostError: a worker died several times in a row; the others have ended in order.
    """
    check_traces(config)
    with (
        reserved_port(config.host, config.port) as port,
        tempfile.TemporaryDirectory(prefix="kvsteer-router-") as sockets,  # which only this user can look into
    ):
        if len(sockets) > MAX_FOLDER_CHARS:
            raise BindError(
                f"no socket can be made in {sockets}: the name is longer than {MAX_FOLDER_CHARS} characters"
            )
        asyncio.run(Supervisor(dataclasses.replace(config, port=port), sockets=sockets, ready=ready).run())


class Supervisor:
    """The one that knows which replicas there are now: a worker that is started anew must not know others."""

    def __init__(self, config: RouterConfig, *, sockets: str, ready: Callable[[str], None]) -> None:
        self._config = config
        self._sockets = sockets
        self._ready = ready
        self._listening: set[int] = set()
        self._urls = dict.fromkeys(config.urls)
        self._slots = [self._slot(place) for place in range(config.workers)]

    async def run(self) -> None:
        """Keep all workers running until told to end."""
        stop = on_stop_signals()
        keeping = [asyncio.create_task(slot.keep()) for slot in self._slots]
        stopped = asyncio.create_task(stop.wait())
        await asyncio.wait([*keeping, stopped], return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        for slot in self._slots:
            slot.stop()
        _, late = await asyncio.wait(keeping, timeout=self._config.drain_timeout + GRACE_SECONDS)
        if late:
            for slot in self._slots:
                slot.kill()
        for ended in await asyncio.gather(*keeping, return_exceptions=True):
            if isinstance(ended, BaseException):
                raise ended

    def _slot(self, place: int) -> Slot:
        trace_out = own_trace(self._config.trace_out, place)
        config = dataclasses.replace(self._config, seed=self._config.seed + place, trace_out=trace_out)
        return Slot(
            place,
            hello=lambda rejoins: Hello(config=config, place=place, sockets=self._sockets, rejoins=rejoins),
            more=self._fleet,
            told=self._told,
        )

    def _fleet(self) -> bytes:
        return encode_line(FleetIs(tuple(self._urls)))

    def _told(self, place: int, message: FromWorker) -> None:
        match message:
            case Listening(url=url):
                _LOG.info("worker %d listens", place)
                if len(self._listening) < len(self._slots) and place not in self._listening:
                    self._listening.add(place)
                    if len(self._listening) == len(self._slots):
                        self._ready(url)
            case Wanted(url=url, present=True):
                self._urls[url] = None
                self._tell_all()
            case Wanted(url=url):
                self._urls.pop(url, None)
                self._tell_all()

    def _tell_all(self) -> None:
        for slot in self._slots:
            slot.tell(self._fleet())
