"""``kvsteer-router trace record``: watches replicas as a router does, routes nothing, writes down what they show."""

from __future__ import annotations

import asyncio
import logging
import signal
from pathlib import Path

import msgspec
import uvloop

from router.config import RouterConfig
from router.service import watching
from router.trace.chunk import TraceFileError
from router.trace.recorder import Recorder, recording
from router.trace.records import FrameHeard, LaneNamed, Record, ReplicaSeen, StreamJoined, StreamLeft
from router.trace.saying import say

__all__ = ["RecordOptions", "run_record"]

_COMMAND = "trace record"


class RecordOptions(msgspec.Struct, frozen=True, kw_only=True):
    """``config`` names the replicas. Recording ends after ``seconds`` or ``batches``, whichever come first, if any."""

    config: RouterConfig
    file: Path
    seconds: float | None
    batches: int | None


class _Watch:
    """Says what is recorded, and when it is enough."""

    def __init__(self, *, batches: int | None) -> None:
        self.stop = asyncio.Event()
        self.failure: TraceFileError | None = None
        self.batches = 0
        self.joined = False
        self._most = batches
        self._names: dict[int, str] = {}

    def failed(self, error: TraceFileError) -> None:
        self.failure = error
        self.stop.set()

    def noted(self, record: Record) -> None:
        match record:
            case FrameHeard():
                self.batches += 1
                if self.batches == self._most:
                    self.stop.set()
            case LaneNamed():
                self._names[record.lane] = f"{record.url}#{record.dp_rank}"
            case StreamJoined():
                self.joined = True
                self._say(
                    f"{self._names[record.lane]} follows {record.endpoint}, blocks of {record.block_size} advertised"
                )
            case StreamLeft():
                self._say(f"{self._names[record.lane]} is not followed any more")
            case ReplicaSeen():
                self._say(f"{record.url} is {record.state}" + (f": {record.trouble}" if record.trouble else ""))

    def _say(self, line: str) -> None:
        say(_COMMAND, line)


def run_record(options: RecordOptions) -> int:
    """Record until SIGINT or SIGTERM, or until it is enough; the exit status.

    Raises:
        TraceFileError: the file cannot be written, or not any longer; or no replica had a stream of events.
    """
    logging.basicConfig(level=logging.ERROR)  # what a fleet logs is printed here, or recorded
    return uvloop.run(_record(options))


async def _record(options: RecordOptions) -> int:
    watch = _Watch(batches=options.batches)
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, watch.stop.set)
    source = f"trace record of {len(options.config.urls)} replicas"
    with recording(options.file, source=source, failed=watch.failed, noted=watch.noted) as recorder:
        await _watch(options, recorder, watch)
        if watch.failure is not None:
            raise watch.failure
    say(_COMMAND, f"{watch.batches} batches recorded in {options.file}")
    if not watch.joined:
        raise TraceFileError(f"no stream was there to be recorded: {options.file} says only what the replicas are")
    return 0


async def _watch(options: RecordOptions, recorder: Recorder, watch: _Watch) -> None:
    async with watching(options.config, recorder=recorder):
        try:
            async with asyncio.timeout(options.seconds):
                await watch.stop.wait()
        except TimeoutError:
            pass
