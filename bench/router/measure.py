"""The measurement: every case on every subject, run after run, and the figures that come of it."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import NamedTuple

from bench.figures import Figure, figure
from bench.router.cases import Case, Form, Requests, make_requests
from bench.router.client import connections
from bench.router.lexicon import Lexicon
from bench.router.load import Burst, Singles, ask_in_turns, burst, hits
from bench.router.process_cost import ProcessCost
from bench.router.routers import KVSTEER, VLLM_ROUTER, Router
from bench.router.samples import BENCH, Sample, figures
from bench.router.stage import DIRECT, Subject

__all__ = ["Plan", "measure"]

CONCURRENCY = 32
MIB = 1024 * 1024
_RIVALS = (KVSTEER, Router(product=VLLM_ROUTER, policy="kv_aware").name)
_SHORT = 200
_QUIET_SECONDS, _QUIET_SHARE, _MOST_LOOKS = 0.05, 0.1, 40
_FLUSH = b"POST /flush_cache HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 0\r\n\r\n"


class _Crowd(NamedTuple):
    """What a burst brought, and the CPU seconds of the router for each of its requests."""

    burst: Burst
    cpu: float | None


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How much is asked: requests of a case and run, of which long prompts get a third."""

    cases: Sequence[Case]
    runs: int
    one_by_one: int
    at_once: int
    seed: int

    def requests(self, case: Case, lexicon: Lexicon, run: int) -> Requests:
        """Those of one case in one run; no other has the same."""
        part = 1 if case.tokens <= _SHORT else 3
        seed, counts = f"{self.seed} {run}", (self.one_by_one // part, self.at_once // part)
        return make_requests(case, lexicon, one_by_one=counts[0], at_once=counts[1], seed=seed)


async def measure(subjects: Sequence[Subject], lexicon: Lexicon, plan: Plan) -> AsyncIterator[Figure]:
    """Figures, a case's as soon as it has been run often enough.

    Raises:
        RequestError: a request was not answered, or not well.
    """
    for form in Form:
        warm_up = Case(tokens=_SHORT, form=form, stream=False, shared=0.0)
        await _play(_able(subjects, warm_up), plan.requests(warm_up, lexicon, run=-1))
    for case in plan.cases:
        able = _able(subjects, case)
        played = []
        for run in range(plan.runs):
            turned = [*able[run % len(able) :], *able[: run % len(able)]]
            played.append(await _play(turned, plan.requests(case, lexicon, run)))
        samples = {subject.name: [one[subject.name] for one in played] for subject in able}
        for one in figures(case.name, samples, base=DIRECT, rivals=_RIVALS):
            yield one
    for subject in subjects:
        if subject.cost is not None:
            resident = subject.cost.resident_bytes() / MIB
            yield figure(BENCH, "after all", subject.name, "resident memory", [resident], unit="MiB")


def _able(subjects: Sequence[Subject], case: Case) -> list[Subject]:
    return [subject for subject in subjects if case.form is Form.TEXT or subject.takes_ids]


async def _play(subjects: Sequence[Subject], requests: Requests) -> dict[str, Sample]:
    """Requests one by one, to all subjects in turns, then many at once, to one subject after the other."""
    await asyncio.gather(*map(_empty_caches, subjects))
    async with AsyncExitStack() as stack:
        lines = [await stack.enter_async_context(connections(subject.urls, len(subject.urls))) for subject in subjects]
        await ask_in_turns(lines, requests.first)
        singles = await ask_in_turns(lines, requests.one_by_one)
    bursts = [await _burst(subject, requests.at_once) for subject in subjects]
    return {
        subject.name: _sample(single, crowd) for subject, single, crowd in zip(subjects, singles, bursts, strict=True)
    }


async def _empty_caches(subject: Subject) -> None:
    urls = [replica.url for replica in subject.fleet.replicas]
    async with connections(urls, len(urls)) as workers:
        await asyncio.gather(*(worker.ask(_FLUSH) for worker in workers))


async def _burst(subject: Subject, requests: Sequence[bytes]) -> _Crowd:
    async with connections(subject.urls, CONCURRENCY) as lines:
        if subject.cost is None:
            return _Crowd(await burst(lines, requests), None)
        before = await _when_quiet(subject.cost)
        done = await burst(lines, requests)
        spent = await _when_quiet(subject.cost) - before
        return _Crowd(done, spent / len(requests))


async def _when_quiet(cost: ProcessCost) -> float:
    """CPU seconds so far, once what was left to do behind the answers is done: events are read until then."""
    spent = cost.cpu_seconds()
    for _ in range(_MOST_LOOKS):
        before = spent
        await asyncio.sleep(_QUIET_SECONDS)
        spent = cost.cpu_seconds()
        if spent - before < _QUIET_SHARE * _QUIET_SECONDS:
            break
    return spent


def _sample(single: Singles, crowd: _Crowd) -> Sample:
    one_by_one, at_once = hits(single.messages), hits(crowd.burst.messages)
    return Sample(
        p50=statistics.median(single.seconds),
        p99=statistics.quantiles(single.seconds, n=100, method="inclusive")[-1],
        hits_one_by_one=one_by_one.rate,
        busiest=one_by_one.busiest,
        rate=len(crowd.burst.messages) / crowd.burst.seconds,
        cpu=crowd.cpu,
        hits_at_once=at_once.rate,
    )
