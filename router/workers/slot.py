"""One worker's place: the process in it, started again when it dies."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable

from router.workers.messages import MAX_LINE_BYTES, FromWorker, Hello, Listening, Wanted, decode_line, encode_line
from router.workers.restarts import DEATHS_TO_GIVE_UP, Restarts

__all__ = ["Slot", "WorkerLostError"]

_LOG = logging.getLogger(__name__)
WORKER_MODULE = "router.workers.worker"


class WorkerLostError(Exception):
    """A worker that cannot be kept running, in one line."""


class Slot:
    """``hello`` is what a worker in this place is told, ``more`` what it hears next; ``told`` hears what it says."""

    def __init__(
        self,
        place: int,
        *,
        hello: Callable[[bool], Hello],
        more: Callable[[], bytes],
        told: Callable[[int, FromWorker], None],
    ) -> None:
        self._place = place
        self._hello = hello
        self._more = more
        self._told = told
        self._restarts = Restarts()
        self._process: Process | None = None
        self._stop = asyncio.Event()

    async def keep(self) -> None:
        """Keep a worker running until ``stop`` has been called and it has ended.

        Raises:
            WorkerLostError: it died too often.
        """
        rejoins = False
        now = asyncio.get_running_loop().time
        while not self._stop.is_set():
            born = now()
            status = await self._run(rejoins=rejoins)
            if not self._stop.is_set():
                await self._pause(status, lived=now() - born)
            rejoins = True

    async def _run(self, *, rejoins: bool) -> int:
        """One process, from its start to its end; its exit status."""
        process = self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            WORKER_MODULE,
            str(self._place),  # for whoever looks at the list of processes
            stdin=PIPE,
            stdout=PIPE,
            limit=MAX_LINE_BYTES,
            start_new_session=True,  # a Ctrl-C is for the parent, which passes it on
        )
        try:
            self.tell(encode_line(self._hello(rejoins)) + self._more())
            if self._stop.is_set():
                process.terminate()
            await self._listen(process)
            return await process.wait()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()

    async def _listen(self, process: Process) -> None:
        assert process.stdout is not None, "it was asked for"
        while line := await process.stdout.readline():
            try:
                message = decode_line(line)
            except ValueError:
                _LOG.warning("worker %d printed %r", self._place, line[:200])
                continue
            if isinstance(message, Listening | Wanted):
                self._told(self._place, message)

    async def _pause(self, status: int, *, lived: float) -> None:
        assert self._process is not None, "there was one: it died"
        how = f"worker {self._place} (pid {self._process.pid}) {_end(status)} after {lived:.1f} s"
        pause = self._restarts.pause(lived=lived)
        if pause is None:
            raise WorkerLostError(f"{how}: the last of {DEATHS_TO_GIVE_UP} deaths in a row")
        _LOG.error("%s; it is started again in %.1f s", how, pause)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause):
                await self._stop.wait()

    def tell(self, lines: bytes) -> None:
        """Say something to the worker, if there is one."""
        process = self._process
        if process is not None and process.returncode is None and process.stdin is not None:
            process.stdin.write(lines)

    def stop(self) -> None:
        """Let the worker end its requests, and start no other."""
        self._stop.set()
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """End the worker at once, if it has not ended yet."""
        if self._process is not None and self._process.returncode is None:
            _LOG.warning("worker %d does not end: it is killed", self._place)
            self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(number)


def _end(status: int) -> str:
    if status >= 0:
        return f"ended with status {status}"
    try:
        return f"was killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"was killed by signal {-status}"
