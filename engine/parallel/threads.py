"""Ranks as threads of one process: cheap to start, and collectives cost tens of microseconds.

A thread rank lives in a loop: take a task, work on it, report. It knows nothing of what the work is. All ranks share
one device.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar, cast

import torch
from torch import Tensor

from engine.parallel.group import Group, sum_in_order
from engine.parallel.world import RankFailedError

__all__ = ["ThreadWorld"]

Task = TypeVar("Task")
Result = TypeVar("Result")

_JOIN_S = 5.0


class ThreadWorld(Generic[Task, Result]):
    """``size`` rank threads that work on the same task at the same time.

    ``build`` runs once on every rank's thread and returns what the rank does with a task. A collective that not all
    ranks reach within ``timeout`` seconds fails, and so does a task that takes twice as long.

    Raises:
        RankFailedError: a rank failed to build.
    """

    def __init__(
        self, *, size: int, build: Callable[[Group], Callable[[Task], Result]], timeout: float = 120.0
    ) -> None:
        self._patience = 2 * timeout
        self._exchanges = _Exchanges(timeout=timeout)
        self._inboxes: list[SimpleQueue[Task | None]] = [SimpleQueue() for _ in range(size)]
        self._reports: SimpleQueue[_Report[Result]] = SimpleQueue()
        self._failure: RankFailedError | None = None
        self._threads = [
            threading.Thread(target=self._live, args=(rank, build), name=f"rank-{rank}", daemon=True)
            for rank in range(size)
        ]
        for thread in self._threads:
            thread.start()
        try:
            self._collect(seconds=None)
        except RankFailedError:
            self.close()
            raise

    def call(self, task: Task) -> list[Result]:
        """Have every rank work on ``task``; their results in rank order. One caller at a time.

        Raises:
            RankFailedError: a rank raised, now or in an earlier call, or did not finish in time.
        """
        if self._failure is not None:
            raise self._failure
        for inbox in self._inboxes:
            inbox.put(task)
        return self._collect(seconds=self._patience)

    def close(self) -> None:
        """End the ranks and wait for them. Idempotent."""
        for inbox in self._inboxes:
            inbox.put(None)
        for thread in self._threads:
            thread.join(_JOIN_S)
        self._failure = self._failure or RankFailedError("the ranks are closed")

    def _collect(self, *, seconds: float | None) -> list[Result]:
        """One report of every rank. The first failure is the cause: whoever fails reports before others notice."""
        results: dict[int, Result] = {}
        deadline = None if seconds is None else time.monotonic() + seconds
        while len(results) < len(self._threads):
            try:
                report = self._reports.get(timeout=None if deadline is None else max(deadline - time.monotonic(), 0.0))
            except Empty:
                missing = [rank for rank in range(len(self._threads)) if rank not in results]
                self._failure = RankFailedError(f"ranks {missing} did not finish a task within {seconds:g} s")
                raise self._failure from None
            if report.error is not None:
                self._failure = _failure(report.rank, report.error)
                raise self._failure from report.error
            results[report.rank] = cast(Result, report.result)
        return [results[rank] for rank in range(len(results))]

    def _live(self, rank: int, build: Callable[[Group], Callable[[Task], Result]]) -> None:
        """A rank's whole life. Whatever it raises is handed to the caller, and frees the ranks that wait for it."""
        try:
            with torch.inference_mode():  # a setting of the thread, not of the process
                self._serve(rank, build(_ThreadGroup(rank, range(len(self._threads)), self._exchanges)))
        except BaseException as error:
            self._reports.put(_Report(rank, error=error))
            self._exchanges.abort()

    def _serve(self, rank: int, work: Callable[[Task], Result]) -> None:
        self._reports.put(_Report(rank))
        while (task := self._inboxes[rank].get()) is not None:
            self._reports.put(_Report(rank, result=work(task)))


@dataclass(frozen=True)
class _Report(Generic[Result]):
    """A rank is ready (no result, no error), has done a task, or has failed and is gone."""

    rank: int
    result: Result | None = None
    error: BaseException | None = None


def _failure(rank: int, error: BaseException) -> RankFailedError:
    return RankFailedError(f"rank {rank} failed: {type(error).__name__}: {error}")


class _Exchange:
    """Where ``members`` leave tensors for each other.

    One barrier a collective is enough, because two rows of slots alternate: a rank can only overwrite the row of
    collective ``n`` in ``n + 2``, after a barrier that everybody enters having read row ``n``.
    """

    def __init__(self, members: range, *, timeout: float) -> None:
        size = len(members)
        self._members = members
        self._timeout = timeout
        self._barrier = threading.Barrier(size)
        self._rows: tuple[list[Tensor | None], list[Tensor | None]] = ([None] * size, [None] * size)
        self._arrivals = [0] * size

    def swap(self, rank: int, tensor: Tensor) -> list[Tensor]:
        """Leave ``tensor``, wait for all ranks, and take what they left."""
        row = self._rows[self._arrivals[rank] % 2]
        row[rank] = tensor
        self._arrivals[rank] += 1
        try:
            self._barrier.wait(self._timeout)
        except threading.BrokenBarrierError:
            raise self._abandoned(self._arrivals[rank]) from None
        return cast(list[Tensor], row)

    def abort(self) -> None:
        """Free all ranks that wait, now and later."""
        self._barrier.abort()

    def _abandoned(self, collective: int) -> TimeoutError:
        missing = [rank for rank, arrivals in zip(self._members, self._arrivals, strict=True) if arrivals < collective]
        return TimeoutError(f"ranks {missing} did not reach collective {collective} within {self._timeout} s")


class _Exchanges:
    """The exchanges of a world: one for all ranks, and one for each subgroup that somebody asked for."""

    def __init__(self, *, timeout: float) -> None:
        self._timeout = timeout
        self._made: dict[range, _Exchange] = {}
        self._aborted = False
        self._lock = threading.Lock()

    def of(self, members: range) -> _Exchange:
        """The one that these ranks share."""
        with self._lock:
            if members not in self._made:
                self._made[members] = _Exchange(members, timeout=self._timeout)
                if self._aborted:
                    self._made[members].abort()
            return self._made[members]

    def abort(self) -> None:
        """Free all ranks that wait in any of them, now and later."""
        with self._lock:
            self._aborted = True
            for exchange in self._made.values():
                exchange.abort()


class _ThreadGroup:
    """One rank's end of an exchange; ``members`` are ranks of the world, ``rank`` is this one's place among them."""

    def __init__(self, rank: int, members: range, exchanges: _Exchanges) -> None:
        self.rank = rank
        self.size = len(members)
        self._members = members
        self._exchanges = exchanges
        self._exchange = exchanges.of(members)

    def subgroup(self, *, size: int) -> _ThreadGroup:
        assert self.size % size == 0, f"{self.size} ranks do not make groups of {size}"
        first = self.rank - self.rank % size
        return _ThreadGroup(self.rank - first, self._members[first : first + size], self._exchanges)

    def all_gather(self, tensor: Tensor) -> Tensor:
        return torch.stack(self._exchange.swap(self.rank, tensor))

    def all_reduce(self, tensor: Tensor) -> Tensor:
        return sum_in_order(self._exchange.swap(self.rank, tensor))
