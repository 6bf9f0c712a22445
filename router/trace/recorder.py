"""Writes down what a fleet shows, as it shows it: lanes get numbers, replicas are kept where they are news.

Written on the caller's thread, which is the router's own: some tens of microseconds a record, and a disk that stands
still holds the router up. A disk that fails ends the recording and nothing else.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

import msgspec

from router.fleet.replica import Replica
from router.trace.chunk import TraceFileError
from router.trace.records import Began, LaneNamed, Record, ReplicaSeen
from router.trace.writer import TraceWriter

__all__ = ["PROGRAM", "Recorder", "recording"]

PROGRAM = "kvsteer-router"
Failed = Callable[[TraceFileError], object]
Noted = Callable[[Record], object]


class Recorder:
    """One recording. ``failed`` is called once, when the file can be written no longer; ``noted`` after each record.

    After that, and after ``end``, notes are dropped.
    """

    def __init__(
        self,
        writer: TraceWriter,
        *,
        source: str,
        failed: Failed,
        noted: Noted | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.clock = clock
        self._writer = writer
        self._failed = failed
        self._noted = noted
        self._ended = False
        self._lanes: dict[tuple[str, int], int] = {}
        self._replicas: dict[str, ReplicaSeen] = {}
        self.note(Began(at=clock(), program=PROGRAM, version=version("kvsteer"), source=source))

    def note(self, record: Record) -> None:
        """Write a record down."""
        if self._ended:
            return
        try:
            self._writer.write(record)
        except TraceFileError as error:
            self._ended = True
            self._failed(error)
        else:
            if self._noted is not None:
                self._noted(record)

    def end(self) -> None:
        """What comes after this is the recorder's own leaving, and no news of the fleet."""
        self._ended = True
        self._writer.close()

    def lane(self, url: str, dp_rank: int) -> int:
        """The number of a lane, which is told when it is first asked for."""
        number = self._lanes.get((url, dp_rank))
        if number is None:
            number = self._lanes[url, dp_rank] = len(self._lanes)
            self.note(LaneNamed(lane=number, url=url, dp_rank=dp_rank))
        return number

    def looked(self, replica: Replica) -> None:
        """A replica was looked at; where it is as it was, nothing is written."""
        found = _seen(replica)
        if found != self._replicas.get(replica.url):
            self._replicas[replica.url] = found
            self.note(msgspec.structs.replace(found, at=self.clock()))


@contextmanager
def recording(path: Path, *, source: str, failed: Failed, noted: Noted | None = None) -> Iterator[Recorder]:
    """A recorder with a file of its own.

    Raises:
        TraceFileError: the file cannot be written from the beginning on.
    """
    with TraceWriter(path) as writer:
        yield Recorder(writer, source=source, failed=failed, noted=noted)


def _seen(replica: Replica) -> ReplicaSeen:
    """The replica as it stands, at no time, so that it can be compared."""
    identity = replica.identity
    return ReplicaSeen(
        at=0.0,
        url=replica.url,
        state=replica.health.state,
        engine=None if identity is None else identity.engine,
        version=None if identity is None else identity.version,
        models=() if identity is None else tuple(model.id for model in identity.models),
        dp_size=len(replica.lanes),
        block_size=None if identity is None else identity.block_size,
        no_events=None if identity is None else identity.no_events,
        trouble=replica.trouble,
    )
