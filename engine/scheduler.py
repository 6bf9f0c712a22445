"""Continuous batching: which tokens of which requests are computed in the next step. Pure, no clock and no threads.

A step takes one token of every decoding request and at most ``Limits.prefill_tokens`` tokens of prefilling ones, in
order of admission. A request is admitted when the blocks of all its known tokens can be had; when a running one cannot
get a block, the one admitted last gives its blocks up and is computed again later, as far as the tree has forgotten it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from contract.events import Event
from contract.geometry import Geometry
from engine.cache.block_table import BlockTable
from engine.cache.prefix_cache import PrefixCache
from engine.cache.states import StateRoom
from engine.job import Job, pack_prompt
from engine.jobs import Jobs
from engine.load import Load, Totals
from engine.request import Namespace, Output, RequestError, SamplingParams
from engine.runner.base import Chunk

__all__ = ["Limits", "Scheduler"]

SHARED = Namespace()


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of one lane: tokens of a sequence, requests running and waiting, prefill tokens of a step."""

    context_length: int
    max_running: int
    max_waiting: int
    prefill_tokens: int


class Scheduler:
    """Call ``schedule``, compute its chunks, ``commit`` the sampled tokens; ``add`` and ``abort`` at any time.

    Equal calls give equal steps, whatever the machine. ``states`` is the room for states of a model that has some.
    """

    def __init__(
        self,
        *,
        geometry: Geometry,
        total_blocks: int,
        limits: Limits,
        eos_token_ids: Collection[int] = (),
        states: StateRoom | None = None,
    ) -> None:
        assert min(limits.context_length, limits.max_running, limits.prefill_tokens) > 0, f"limits below 1: {limits}"
        assert states is None or states.running >= limits.max_running, f"{states} is not enough for {limits}"
        self.limits = limits
        self._geometry = geometry
        self._eos_token_ids = frozenset(eos_token_ids)
        self._cache = PrefixCache(geometry=geometry, total_blocks=total_blocks, states=states)
        self._jobs = Jobs()
        self._step: list[Chunk] = []  # scheduled, not committed
        self._totals = Totals()

    @property
    def idle(self) -> bool:
        """Nothing runs and nothing waits."""
        return not self._jobs

    def check(self, prompt_length: int, sampling: SamplingParams) -> None:
        """Refuse what could never finish; reads only what never changes, so any thread may ask.

        Raises:
            RequestError: no prompt, a negative ``max_new_tokens``, or more tokens than the context or the cache hold.
        """
        answer = sampling.max_new_tokens
        asked = f"{prompt_length} prompt tokens and {answer} new ones"
        if prompt_length < 1 or answer < 0:
            raise RequestError(f"at least 1 prompt token and no negative number of new ones, got {asked}")
        if prompt_length + answer > self.limits.context_length:
            raise RequestError(f"{asked} do not fit the context length of {self.limits.context_length} tokens")
        stored = prompt_length + max(answer - 1, 0)  # the last token is answered, never stored
        blocks, total = self._geometry.blocks_for(stored), self._cache.total_blocks
        if blocks > total:
            width = self._geometry.block_width
            raise RequestError(f"{asked} need {blocks} blocks of {width} tokens, the cache has {total}")

    def add(
        self, request_id: int, prompt: Sequence[int], sampling: SamplingParams, namespace: Namespace = SHARED
    ) -> None:
        """Queue a request behind those that wait. The caller bounds how many wait, and never uses an id twice.

        Raises:
            RequestError: see ``check``; a token id outside [0, 2**64).
        """
        assert request_id not in self._jobs, f"request id {request_id} is in use"
        self.check(len(prompt), sampling)
        self._jobs.enter(Job(request_id, pack_prompt(prompt), sampling, namespace))

    def abort(self, request_id: int) -> Output | None:
        """Drop a request at once, wherever it is; what it computed stays in the tree. ``None``: it is not here."""
        job = self._jobs.get(request_id)
        if job is None:
            return None
        self._finish(job)
        return Output(token_ids=[], cached_tokens=job.cached_tokens or 0, finish_reason="abort")

    def schedule(self) -> list[Chunk]:
        """The chunks of the next step; empty only when idle."""
        assert not self._step, "a step is scheduled before the last one is committed"
        self._grow_running()
        budget = self.limits.prefill_tokens
        for job in self._jobs.running:
            budget -= self._plan(job, budget)
        while budget > 0 and (admitted := self._admit_next()):
            budget -= self._plan(admitted, budget)
        return list(self._step)

    def commit(self, sampled: Sequence[int | None]) -> dict[int, Output]:
        """Take the step's result, one entry a chunk, and say what it brought to which request."""
        step, self._step = self._step, []
        assert len(sampled) == len(step), f"{len(step)} chunks were scheduled, {len(sampled)} results came back"
        outputs = {}
        for chunk, token in zip(step, sampled, strict=True):
            job = self._jobs.get(chunk.request_id)
            if job is None:  # aborted while it was computed
                continue
            self._computed(job, len(chunk.tokens))
            if chunk.sampling is not None:
                assert token is not None, f"no token was sampled for request {job.request_id}"
                outputs[job.request_id] = self._answer(job, token)
        return outputs

    def flush(self) -> bool:
        """Empty the cache, if the scheduler is idle; whether it was."""
        if self.idle:
            self._cache.clear()
        return self.idle

    def take_events(self) -> list[Event]:
        """What happened to cached blocks since the last call: one batch."""
        return self._cache.take_events()

    def held_events(self) -> list[Event]:
        """Stores that describe every block held now, parents first."""
        return self._cache.held_events()

    def load(self) -> Load:
        """The lane as it is now."""
        width = self._geometry.block_width
        cache = self._cache
        self._totals.evicted_tokens = cache.evicted_blocks * width
        self._totals.evicted_snapshots = cache.evicted_snapshots
        return Load(
            running=len(self._jobs.running),
            waiting=len(self._jobs.waiting),
            max_running=self.limits.max_running,
            used_tokens=(cache.total_blocks - cache.available_blocks) * width,
            evictable_tokens=cache.evictable_blocks * width,
            total_tokens=cache.total_blocks * width,
            pending_prefill_tokens=self._jobs.pending_prefill,
            held_snapshots=cache.held_snapshots,
            totals=msgspec.structs.replace(self._totals),
        )

    def _grow_running(self) -> None:
        """See that every running job has a block for its next token, if need be by preempting those admitted last.

        It ends: the job admitted first can have all blocks of the cache, and ``check`` saw that those suffice. What
        one job gives up another takes, so the preempted one cannot be admitted again in the same step.
        """
        index, running = 0, self._jobs.running
        while index < len(running):
            job = running[index]
            if self._cache.grow(_table(job), length=len(job.tokens)):
                index += 1
            else:
                self._preempt(running[-1])

    def _preempt(self, job: Job) -> None:
        self._release(job)
        self._jobs.send_back(job)
        self._totals.preemptions += 1

    def _plan(self, job: Job, budget: int) -> int:
        """Add the job's next chunk to the step; how much of the prefill budget it takes."""
        pending = job.pending_prefill
        count = min(pending, budget) if pending else 1
        if count:
            self._step.append(self._chunk(job, count))
        return count if pending else 0

    def _chunk(self, job: Job, count: int) -> Chunk:
        stop = job.computed + count
        moves = self._cache.plan_states(_table(job), start=job.computed, stop=stop, known=len(job.tokens))
        return job.chunk(count, blocks=self._geometry.blocks_for(stop), states=moves)

    def _admit_next(self) -> Job | None:
        """Start the first waiting job if there is room for it.

        Besides its own blocks it must leave one for each running job, or the next step might preempt it again. A job
        that did not fit is not tried again before there is more room.
        """
        waiting, running = self._jobs.waiting, len(self._jobs.running)
        if not waiting or running >= self.limits.max_running:
            return None
        job = waiting[0]
        room = self._cache.available_blocks - running
        if room <= job.room_refused:
            return None
        known = job.tokens[:-1]  # the last one is computed in any case: the next is sampled from it
        table = self._cache.open(known, job.namespace)
        needed = self._geometry.blocks_for(len(job.tokens)) - len(table.blocks)
        if needed > self._cache.available_blocks - running:
            self._cache.close(table, job.tokens, length=0)
            job.room_refused = room
            return None
        grown = self._cache.grow(table, length=len(job.tokens))
        assert grown, f"{needed} blocks were counted as available and could not be had"
        self._start(job, table)
        return job

    def _start(self, job: Job, table: BlockTable) -> None:
        """Start ``job``, the first that waits."""
        cached = table.shared * self._geometry.block_width
        if job.cached_tokens is None:
            self._totals.prompt_tokens += job.prompt_length
            self._totals.cached_tokens += cached
            self._totals.stateless_tokens += table.held_tokens - cached
        self._jobs.start_next(table, cached=cached)

    def _computed(self, job: Job, count: int) -> None:
        prefilled = self._jobs.computed(job, count)
        if prefilled:
            self._totals.prefilled_tokens += prefilled
            self._cache.share(_table(job), job.tokens, length=job.computed)

    def _answer(self, job: Job, token: int) -> Output:
        cached = job.cached_tokens or 0
        if job.sampling.max_new_tokens == 0:  # asked only to fill the cache
            self._finish(job)
            return Output(token_ids=[], cached_tokens=cached, finish_reason="length")
        job.tokens.append(token)
        self._totals.generated_tokens += 1
        reason = job.finish_reason(eos_token_ids=self._eos_token_ids, context_length=self.limits.context_length)
        if reason is not None:
            self._finish(job)
        return Output(token_ids=[token], cached_tokens=cached, finish_reason=reason)

    def _finish(self, job: Job) -> None:
        if job.table is not None:
            self._release(job)
        self._jobs.leave(job)

    def _release(self, job: Job) -> None:
        """Leave what is computed of a running job to the tree and give everything else back."""
        self._cache.close(_table(job), job.tokens, length=job.computed)

    def check_invariants(self) -> None:
        """Assert that no block leaks, every job is in one place, and the counts agree with the jobs."""
        self._jobs.check_invariants()
        running = self._jobs.running
        self._cache.check_invariants(_table(job) for job in running)
        assert len(running) <= self.limits.max_running, "more jobs run than may"
        for job in running:
            self._check_running(job, _table(job))

    def _check_running(self, job: Job, table: BlockTable) -> None:
        assert job.computed < len(job.tokens), "a running job has nothing to compute"
        assert len(table.blocks) >= self._geometry.blocks_for(job.computed), "computed tokens without a block"
        assert table.shared <= self._geometry.full_blocks(job.computed), "blocks are shared before they are computed"


def _table(job: Job) -> BlockTable:
    assert job.table is not None, f"request {job.request_id} is not running"
    return job.table
