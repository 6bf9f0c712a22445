"""Child processes of a bench run: started, awaited until ready, watched, and always stopped.

A child says that it is ready with lines ``<prefix> ready URL`` on its output; all of its output goes to a log whose
tail is part of the error when the child dies. Nothing here knows what the children do.
"""

from __future__ import annotations

import asyncio
import os
from asyncio.subprocess import PIPE, STDOUT, Process
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from bench.tether import tethered

__all__ = ["Child", "ChildError", "ChildGroup"]

TAIL_LINES = 15
STOP_SECONDS = 5.0
NOTICE_SECONDS = 0.5
CHUNK_BYTES = 1 << 16
T = TypeVar("T")


class ChildError(RuntimeError):
    """A child died or never became ready; the message ends with the tail of its output."""


class Child:
    """One running process. ``urls`` are those it has announced so far."""

    def __init__(self, *, name: str, process: Process, log: Path, ready_mark: str | None, ready_count: int) -> None:
        self.name = name
        self.urls: list[str] = []
        self.ready = asyncio.Event()
        self.stopping = False
        self.process = process
        self._log = log
        self._mark = None if ready_mark is None else ready_mark.encode()
        self._count = ready_count

    @property
    def dead(self) -> bool:
        """Whether the system says so; this process may have had no time to take notice of it."""
        if self.process.returncode is not None:
            return True
        try:
            return os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:
            return True

    def tail(self) -> str:
        """The last lines of its output, indented."""
        lines = self._log.read_text(errors="replace").splitlines()[-TAIL_LINES:]
        return "\n".join(f"    {line}" for line in lines) or "    (no output)"

    async def pump(self) -> None:
        """Copy the output to the log until it ends, and read the ready lines on the way."""
        assert self.process.stdout is not None, "children are started with a pipe"
        unread = b""
        with self._log.open("wb", buffering=0) as log:
            while chunk := await self.process.stdout.read(CHUNK_BYTES):
                log.write(chunk)
                if self._mark is not None and not self.ready.is_set():
                    *lines, unread = (unread + chunk).split(b"\n")
                    self._scan(lines, self._mark)

    def _scan(self, lines: Sequence[bytes], mark: bytes) -> None:
        self.urls += [line.split()[-1].decode() for line in lines if line.startswith(mark)]
        if len(self.urls) >= self._count:
            self.ready.set()

    async def stop(self) -> None:
        """Ask it to end, and kill it when it does not. Does nothing to a process that has ended."""
        self.stopping = True
        if self.process.returncode is not None:
            return
        self.process.terminate()
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await self.process.wait()
        except TimeoutError:
            self.process.kill()
            await self.process.wait()


class ChildGroup:
    """Children that live no longer than this context, nor than this process.

    ``log_dir`` receives one ``<name>.log`` a child.
    """

    def __init__(self, log_dir: Path, *, env: Mapping[str, str] | None = None) -> None:
        self._log_dir = log_dir
        self._env = env
        self._children: list[Child] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._death: asyncio.Future[ChildError] = asyncio.get_running_loop().create_future()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.gather(*(child.stop() for child in self._children))
        await asyncio.gather(*self._tasks)
        self._death.cancel()

    async def start(
        self, name: str, command: Sequence[str], *, ready_mark: str, ready_count: int = 1, seconds: float = 60.0
    ) -> Child:
        """Start a command and wait until it has printed ``ready_count`` lines that start with ``ready_mark``.

        Raises:
            ChildError: it, or another child of the group, ended first, or ``seconds`` went by.
        """
        child = await self._launch(name, command, ready_mark=ready_mark, ready_count=ready_count)
        try:
            async with asyncio.timeout(seconds):
                await self.supervise(child.ready.wait())
        except TimeoutError:
            raise ChildError(f"{name} was not ready after {seconds:g} s; its output ends:\n{child.tail()}") from None
        return child

    async def launch(self, name: str, command: Sequence[str]) -> Child:
        """Start a command that does not say when it is ready: whoever needs it asks for it."""
        return await self._launch(name, command, ready_mark=None, ready_count=0)

    async def _launch(self, name: str, command: Sequence[str], *, ready_mark: str | None, ready_count: int) -> Child:
        # A session of its own: Ctrl-C reaches this process only, which then stops its children in order.
        process = await asyncio.create_subprocess_exec(
            *tethered(command), stdout=PIPE, stderr=STDOUT, start_new_session=True, env=self._env
        )
        log = self._log_dir / f"{name}.log"
        child = Child(name=name, process=process, log=log, ready_mark=ready_mark, ready_count=ready_count)
        self._children.append(child)
        watcher = asyncio.create_task(self._watch(child), name=f"watch {name}")
        self._tasks.add(watcher)
        watcher.add_done_callback(self._tasks.discard)
        return child

    async def stop(self, child: Child) -> None:
        """Stop one child on purpose."""
        await child.stop()
        self._children.remove(child)

    async def supervise(self, work: Coroutine[Any, Any, T]) -> T:
        """Await ``work``, unless a child dies first: then the work is cancelled.

        Raises:
            ChildError: a child that nobody stopped has ended.
        """
        task = asyncio.ensure_future(work)
        ends: set[asyncio.Future[Any]] = {task, self._death}
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if task.done() and not task.cancelled() and task.exception():
                await self._notice_deaths()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)  # what it says when cancelled is not what happened
        if self._death.done():
            raise self._death.result()
        return task.result()

    async def _notice_deaths(self) -> None:
        """Give a death the time to be known: work that fails as its server dies may notice first, and explains less."""
        await asyncio.wait({self._death}, timeout=NOTICE_SECONDS)
        if any(child.dead and not child.stopping for child in self._children):
            await asyncio.wait({self._death}, timeout=STOP_SECONDS)

    async def _watch(self, child: Child) -> None:
        await child.pump()
        status = await child.process.wait()
        if not child.stopping and not self._death.done():
            how = f"signal {-status}" if status < 0 else f"status {status}"
            self._death.set_result(ChildError(f"{child.name} ended with {how}; its output ends:\n{child.tail()}"))
