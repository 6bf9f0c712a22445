"""Ranks as processes: the engine's end of them, which feeds, watches and ends them.

The engine is no rank itself. A task goes to every rank over a connection of its own, not by a collective, so that the
engine needs no torch, and always can tell who has ended: a connection ends when its process does, whatever the process
was doing. Knows nothing of what the work is.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from engine.parallel.assembly import assembled
from engine.parallel.channel import ChannelError, Kind
from engine.parallel.lifeline import hung_up
from engine.parallel.rank_process import Build
from engine.parallel.seat import Cluster
from engine.parallel.world import RankFailedError

__all__ = ["LossListener", "ProcessWorld"]

LossListener = Callable[[RankFailedError], None]
_CLOSE_SECONDS = 5.0


class ProcessWorld:
    """``size`` rank processes that work on the same task at the same time; tasks and results are bytes.

    ``build`` is pickled, and runs once on every rank; it returns what the rank does with a task. A rank waits for
    others in a collective for ``timeout`` seconds; the engine waits twice as long for a task to be done. To be made on
    a thread that lives as long as the world. ``cluster`` is for ranks on several machines; without it all are here.

    Raises:
        RankFailedError: a rank did not start, or failed to build.
        OSError: the meeting's address is taken, or not this machine's.
    """

    def __init__(
        self, *, size: int, build: Build, device: str = "cpu", timeout: float = 120.0, cluster: Cluster | None = None
    ) -> None:
        self._patience = 2 * timeout
        self._closed = False
        self._failure: RankFailedError | None = None
        self._listener: LossListener | None = None
        self._turn = threading.Lock()  # whoever holds it may listen to the ranks
        self._roster = assembled(size=size, build=build, device=device, timeout=timeout, cluster=cluster)
        self._bell = os.eventfd(0)
        self._watch = threading.Thread(target=self._wait_for_loss, name="rank-watch", daemon=True)
        self._watch.start()

    @property
    def pids(self) -> list[int]:
        """Process ids in rank order; a rank of another machine has that machine's."""
        return [member.pid for member in self._roster.members]

    def call(self, task: bytes) -> list[bytes]:
        """Have every rank work on ``task``; their results in rank order. One caller at a time.

        Raises:
            RankFailedError: a rank was lost, now or earlier, or did not finish in time.
        """
        with self._turn:
            if self._failure is not None:
                raise self._failure
            try:
                self._send(task)
                return self._roster.collect(Kind.DONE, seconds=self._patience)
            except RankFailedError as error:
                self._fail(error)
                raise

    def on_loss(self, listener: LossListener) -> None:
        """Have ``listener`` called, on a thread of ours, once a rank is lost; at once if one was."""
        with self._turn:
            self._listener = listener
            failure = None if self._closed else self._failure
        if failure is not None:
            listener(failure)

    def close(self) -> None:
        """End the ranks and wait for them. Idempotent."""
        with self._turn:
            if self._closed:
                return
            self._closed = True
            if self._failure is None:
                self._dismiss()
                self._failure = RankFailedError("the ranks are closed")
        os.eventfd_write(self._bell, 1)
        self._watch.join()
        os.close(self._bell)

    def _send(self, task: bytes) -> None:
        for member in self._roster.members:
            try:
                member.channel.send(Kind.TASK, task, timeout=self._patience)
            except ChannelError:
                raise self._roster.loss() from None
            except TimeoutError:
                raise RankFailedError(f"{member} took no task for {self._patience:g} s") from None

    def _fail(self, error: RankFailedError) -> None:
        self._failure = error
        self._roster.kill()

    def _dismiss(self) -> None:
        """Tell all to end before waiting for any, since they leave their group together."""
        for member in self._roster.members:
            with suppress(ChannelError, TimeoutError):
                member.channel.send(Kind.CLOSE, timeout=_CLOSE_SECONDS)
        deadline = time.monotonic() + _CLOSE_SECONDS
        for member in self._roster.members:
            member.end(max(deadline - time.monotonic(), 0.0))

    def _wait_for_loss(self) -> None:
        """Whatever a rank does between two tasks is its end. During one, the caller notices first and has the turn."""
        poll = hung_up(*(member.channel for member in self._roster.members))
        poll.register(self._bell, select.POLLIN)
        poll.poll()
        with self._turn:
            if self._closed:
                return
            if self._failure is None:
                self._fail(self._roster.loss())
            failure, listener = self._failure, self._listener
        if listener is not None and failure is not None:
            listener(failure)
