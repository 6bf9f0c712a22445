"""The requests of one lane: which of them wait, which run, and how much of their prefill is still to be computed.

Knows nothing of blocks or steps: when a job starts or stops is the scheduler's to say.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from engine.cache.block_table import BlockTable
from engine.job import Job

__all__ = ["Jobs"]


class Jobs:
    """Every job is in one place. ``pending_prefill`` is of all, kept beside them so that a step need not add it up."""

    def __init__(self) -> None:
        self.pending_prefill = 0
        self._by_id: dict[int, Job] = {}
        self._waiting: deque[Job] = deque()
        self._running: list[Job] = []  # in order of admission

    def __len__(self) -> int:
        return len(self._by_id)

    def __contains__(self, request_id: int) -> bool:
        return request_id in self._by_id

    @property
    def running(self) -> Sequence[Job]:
        """Those that run, in order of admission."""
        return self._running

    @property
    def waiting(self) -> Sequence[Job]:
        """Those that wait, the next one first."""
        return self._waiting

    def get(self, request_id: int) -> Job | None:
        """The job of a request, if it is still here."""
        return self._by_id.get(request_id)

    def enter(self, job: Job) -> None:
        """It waits behind all others."""
        self._by_id[job.request_id] = job
        self._waiting.append(job)
        self.pending_prefill += job.pending_prefill

    def start_next(self, table: BlockTable, *, cached: int) -> None:
        """The first that waits runs from here on; the first ``cached`` of its tokens are in ``table``'s blocks."""
        job = self._waiting.popleft()
        job.start(table, cached=cached)
        self._running.append(job)
        self.pending_prefill -= cached

    def send_back(self, job: Job) -> None:
        """A running job waits again, before all others."""
        self._running.remove(job)
        self.pending_prefill -= job.pending_prefill
        job.requeue()
        self.pending_prefill += job.pending_prefill
        self._waiting.appendleft(job)

    def computed(self, job: Job, count: int) -> int:
        """So many more tokens of a running job are in the cache; how many of them were prefill."""
        prefilled = min(job.pending_prefill, count)
        job.computed += count
        self.pending_prefill -= prefilled
        return prefilled

    def leave(self, job: Job) -> None:
        """It is over."""
        if job.table is None:
            self._waiting.remove(job)
        else:
            self._running.remove(job)
        self.pending_prefill -= job.pending_prefill
        del self._by_id[job.request_id]

    def check_invariants(self) -> None:
        """Assert that every job is in one place, and that the count agrees with the jobs."""
        placed = [*self._waiting, *self._running]
        assert len(placed) == len(self._by_id), "a job is lost, or in two places"
        assert all(self._by_id[job.request_id] is job for job in placed), "a job is filed under another id"
        assert all(job.table is None and job.computed == 0 for job in self._waiting), "a waiting job holds blocks"
        assert all(job.table is not None for job in self._running), "a running job holds no blocks"
        assert self.pending_prefill == sum(job.pending_prefill for job in placed), "the prefill still pending is off"
