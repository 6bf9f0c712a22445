"""What Prometheus is told: counted requests, and the fleet as it stands when it is asked."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from program.compiled_cores import in_use
from router.choice.tokenization import Tokenization
from router.cores import CORES
from router.fleet.breaker import BreakerState
from router.fleet.fleet import Fleet
from router.fleet.health import State
from router.fleet.lane import Lane
from router.fleet.replica import Replica
from router.front.admission import Admission
from router.intake.index import BlockIndex
from router.proof.diagnosis import Diagnosis

__all__ = ["FleetMetrics", "RequestMetrics", "exposition"]

_TTFT_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_LANE = ("replica", "dp_rank")


class RequestMetrics:
    """Counted as requests pass."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._inside = Gauge("kvsteer_requests_inside", "Requests admitted and not ended.", registry=registry)
        self._closed = Counter(
            "kvsteer_closed_connections", "Client connections closed at a limit, by why.", ("why",), registry=registry
        )
        self._requests = Counter(
            "kvsteer_requests", "Requests answered, by status.", ("route", "status"), registry=registry
        )
        self._by_answer: dict[tuple[str, int], Counter] = {}
        self._by_replica: dict[str, Histogram] = {}
        self._retries = Counter("kvsteer_retries", "Requests given to a second replica.", registry=registry)
        self._broken = Counter(
            "kvsteer_broken_answers", "Answers an engine broke off.", ("replica",), registry=registry
        )
        self._ttft = Histogram(
            "kvsteer_time_to_first_token_seconds",
            "From the choice to an engine's first byte of a stream.",
            ("replica",),
            buckets=_TTFT_BUCKETS,
            registry=registry,
        )

    def admits_by(self, admission: Admission) -> None:
        """Show how many requests are inside."""
        self._inside.set_function(lambda: admission.inside)

    def closed_connection(self, why: str) -> None:
        """A client's connection was closed at a limit."""
        self._closed.labels(why).inc()

    def answered(self, *, route: str, status: int) -> None:
        """A request has been answered."""
        series = self._by_answer.get((route, status))
        if series is None:  # finding it by its labels takes as long as the rest of what is counted here
            series = self._by_answer[route, status] = self._requests.labels(route, status)
        series.inc()

    def retried(self) -> None:
        """A request goes to a second replica."""
        self._retries.inc()

    def broke_off(self, url: str) -> None:
        """A replica broke off an answer that the client had begun to receive."""
        self._broken.labels(url).inc()

    def first_token(self, url: str, *, seconds: float) -> None:
        """A stream's first byte came."""
        series = self._by_replica.get(url)
        if series is None:
            series = self._by_replica[url] = self._ttft.labels(url)
        series.observe(seconds)


class FleetMetrics(Collector):
    """Read off the fleet when asked for, so that no request pays for it."""

    def __init__(self, fleet: Fleet, index: BlockIndex, tokenization: Tokenization, *, diagnosis: Diagnosis) -> None:
        self._fleet = fleet
        self._index = index
        self._tokenization = tokenization
        self._diagnosis = diagnosis

    def collect(self) -> Iterator[Metric]:
        """All families."""
        yield from self._replicas()
        for name, text, value in _LANE_COUNTERS:
            yield self._by_lane(CounterMetricFamily(f"kvsteer_lane_{name}", text, labels=_LANE), value)
        for name, text, value in _LANE_GAUGES:
            yield self._by_lane(GaugeMetricFamily(f"kvsteer_lane_{name}", text, labels=_LANE), value)
        yield self._blocks()
        misses = CounterMetricFamily("kvsteer_untokenized_prompts", "Text prompts routed without token ids.")
        misses.add_metric((), self._tokenization.misses)
        yield misses
        cores = GaugeMetricFamily("kvsteer_compiled_core", "1 for a core in use, 0 for plain Python.", labels=("core",))
        for core in CORES:
            cores.add_metric((core,), in_use(core))
        yield cores

    def _replicas(self) -> Iterable[Metric]:
        states = GaugeMetricFamily(
            "kvsteer_replica_state", "1 for the state a replica is in.", labels=("replica", "state")
        )
        breakers = GaugeMetricFamily(
            "kvsteer_replica_breaker", "1 for the state a replica's breaker is in.", labels=("replica", "state")
        )
        faults = GaugeMetricFamily("kvsteer_replica_faults", "Faults found now, by code.", labels=("replica", "code"))
        for replica in self._fleet.replicas:
            for state in State:
                states.add_metric((replica.url, state), replica.health.state is state)
            for breaker in BreakerState:
                breakers.add_metric((replica.url, breaker), replica.breaker.state(now=time.monotonic()) is breaker)
            for code, count in self._fault_counts(replica).items():
                faults.add_metric((replica.url, code), count)
        return states, breakers, faults

    def _fault_counts(self, replica: Replica) -> dict[str, int]:
        counts: dict[str, int] = {}
        for fault in self._diagnosis.review(replica):
            counts[fault.code] = counts.get(fault.code, 0) + 1
        return counts

    def _by_lane(self, family: CounterMetricFamily | GaugeMetricFamily, value: Callable[[Lane], float]) -> Metric:
        for lane in self._fleet.lanes:
            family.add_metric((lane.url, str(lane.dp_rank)), value(lane))
        return family

    def _blocks(self) -> Metric:
        family = GaugeMetricFamily("kvsteer_lane_blocks", "Blocks the index holds.", labels=(*_LANE, "tier"))
        for lane in self._fleet.lanes:
            for tier, count in self._index.stats(lane.handle).blocks.items():
                family.add_metric((lane.url, str(lane.dp_rank), tier), count)
        return family


def _status(lane: Lane, name: str) -> float:
    status = lane.status
    return 0.0 if status is None else float(getattr(status, name))


_Reading = tuple[str, str, Callable[[Lane], float]]
_LANE_COUNTERS: tuple[_Reading, ...] = (
    ("requests", "Requests sent.", lambda lane: lane.tally.routed),
    ("prompt_tokens", "Prompt tokens of finished requests.", lambda lane: lane.tally.prompt_tokens),
    ("predicted_hit_tokens", "Tokens predicted as cached.", lambda lane: lane.tally.predicted),
    ("reported_hit_tokens", "Tokens the engine reported as cached.", lambda lane: lane.tally.reported),
    ("event_batches", "Event batches applied.", lambda lane: _status(lane, "batches")),
    ("event_gaps", "Holes seen in the batch numbers.", lambda lane: _status(lane, "gaps")),
    ("event_batches_lost", "Event batches that stayed missing.", lambda lane: _status(lane, "lost")),
    ("event_batches_replayed", "Event batches that came by replay.", lambda lane: _status(lane, "replayed")),
)
_LANE_GAUGES: tuple[_Reading, ...] = (
    ("in_flight", "Requests sent and not ended.", lambda lane: lane.load.in_flight),
    ("queued_tokens", "Uncached prompt tokens without a first token yet.", lambda lane: lane.load.queued_tokens),
    (
        "window_predicted_hit_tokens",
        "Predicted, over the last requests.",
        lambda lane: lane.tally.window_sums.predicted_hit,
    ),
    (
        "window_reported_hit_tokens",
        "Reported, over the last requests.",
        lambda lane: lane.tally.window_sums.reported_hit,
    ),
    ("width", "Tokens per block as hashed (0: unknown).", lambda lane: lane.width or 0),
)


def exposition(registry: CollectorRegistry) -> bytes:
    """The text format."""
    return generate_latest(registry)
