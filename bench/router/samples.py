"""From what was measured to figures. Pure; differences and ratios are taken within one run, then their median."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from bench.figures import Figure, figure

__all__ = ["BENCH", "Sample", "figures"]

BENCH = "router"


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """One subject, one case, one run. Times in seconds: to a whole answer with one request under way at a time.

    ``cpu`` is the router's for each request of a burst; None where no router was asked. ``rate`` is requests per second
    in that burst. Hits are shares of prompt tokens that workers reported as cached; ``busiest`` is the share of the
    single requests that the busier worker got.
    """

    p50: float
    p99: float
    hits_one_by_one: float
    busiest: float
    rate: float
    cpu: float | None
    hits_at_once: float


def figures(
    case: str, samples: Mapping[str, Sequence[Sample]], *, base: str, rivals: tuple[str, str]
) -> Iterator[Figure]:
    """All figures of a case. ``base`` was asked without a router, ``rivals`` are held against each other."""
    for subject, ours in samples.items():
        yield from _of_base(case, subject, ours) if subject == base else _of_router(case, subject, ours, samples[base])
    if all(rival in samples for rival in rivals):
        yield from _between(case, samples, base, rivals)


def _of_base(case: str, subject: str, ours: Sequence[Sample]) -> Iterator[Figure]:
    yield figure(BENCH, case, subject, "p50", [1e3 * one.p50 for one in ours], unit="ms")
    yield figure(BENCH, case, subject, "p99", [1e3 * one.p99 for one in ours], unit="ms")
    yield figure(BENCH, case, subject, "rate at 32", [one.rate for one in ours], unit="req/s")


def _of_router(case: str, subject: str, ours: Sequence[Sample], base: Sequence[Sample]) -> Iterator[Figure]:
    def each(metric: str, value: Callable[[Sample, Sample], float], unit: str) -> Figure:
        return figure(BENCH, case, subject, metric, [value(*pair) for pair in zip(ours, base, strict=True)], unit=unit)

    yield each("added p50", lambda one, direct: 1e3 * (one.p50 - direct.p50), "ms")
    yield each("added p99", lambda one, direct: 1e3 * (one.p99 - direct.p99), "ms")
    yield each("CPU", lambda one, _: 1e3 * _cpu(one), "ms/req")
    yield each("rate at 32", lambda one, _: one.rate, "req/s")
    yield each("rate of direct's", lambda one, direct: one.rate / direct.rate, "ratio")
    yield each("hits one by one", lambda one, _: one.hits_one_by_one, "share")
    yield each("hits at 32", lambda one, _: one.hits_at_once, "share")
    yield each("busier worker", lambda one, _: one.busiest, "share")


def _between(
    case: str, samples: Mapping[str, Sequence[Sample]], base: str, rivals: tuple[str, str]
) -> Iterator[Figure]:
    ours, theirs = (samples[rival] for rival in rivals)
    subject = " / ".join(rivals)
    cpu = [_cpu(one) / _cpu(other) for one, other in zip(ours, theirs, strict=True)]
    added = [
        (one.p50 - direct.p50) / (other.p50 - direct.p50)
        for one, other, direct in zip(ours, theirs, samples[base], strict=True)
    ]
    yield figure(BENCH, case, subject, "CPU", cpu, unit="ratio")
    yield figure(BENCH, case, subject, "added p50", added, unit="ratio")


def _cpu(one: Sample) -> float:
    assert one.cpu is not None, "a router costs something"
    return one.cpu
