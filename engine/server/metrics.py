"""``/metrics``: what one replica counts, in Prometheus' text form. Each replica has a registry of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from operator import attrgetter

from aiohttp import web
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from engine.load import Load
from engine.server.answer import Answer
from engine.server.lanes import Lanes

__all__ = ["RequestMetrics"]

_PREFIX = "kvsteer_engine"
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_GAUGES = {
    "running": "Requests being computed.",
    "waiting": "Requests that wait for room.",
    "used_tokens": "Cache room of running requests, in tokens.",
    "evictable_tokens": "Cache room kept for reuse only, in tokens.",
    "total_tokens": "Cache room, in tokens.",
    "pending_prefill_tokens": "Prompt tokens still to be computed.",
    "held_snapshots": "States kept behind cached prefixes (hybrid models).",
}
_TOTALS = {
    "prompt_tokens": "Prompt tokens of admitted requests.",
    "cached_tokens": "Of the prompt tokens: those found in the cache.",
    "stateless_tokens": "Of the prompt tokens: in cached blocks, but behind no kept state (hybrid models).",
    "prefilled_tokens": "Tokens computed by prefill, recomputation included.",
    "generated_tokens": "Tokens generated.",
    "evicted_tokens": "Tokens dropped from the cache to make room.",
    "evicted_snapshots": "Kept states dropped to make room for others (hybrid models).",
    "preemptions": "Requests put back to be computed again.",
}


class RequestMetrics:
    """Counts kept by the request handlers; what the lanes know is read from them when somebody asks."""

    def __init__(self, lanes: Lanes) -> None:
        self._registry = registry = CollectorRegistry()
        registry.register(_LaneCollector(lanes))
        self._responses = Counter(
            f"{_PREFIX}_http_responses", "Answers by route and status.", ["route", "status"], registry=registry
        )
        self._ended = Counter(
            f"{_PREFIX}_requests", "Prompts that ended, by reason.", ["finish_reason"], registry=registry
        )
        self._ttft = Histogram(
            f"{_PREFIX}_time_to_first_token_seconds", "From submission on.", buckets=_SECONDS, registry=registry
        )
        self._e2e = Histogram(
            f"{_PREFIX}_request_seconds", "From submission to the end.", buckets=_SECONDS, registry=registry
        )

    def first_token(self, seconds: float) -> None:
        """A prompt has its first token, so long after it was submitted."""
        self._ttft.observe(seconds)

    def ended(self, answer: Answer, *, seconds: float) -> None:
        """An answer is complete, or (no finish reason) nobody waits for the rest of it."""
        self._ended.labels(answer.finish_reason or "abort").inc()
        self._e2e.observe(seconds)

    async def count_response(self, request: web.Request, response: web.StreamResponse) -> None:
        """Count one HTTP answer under its route's pattern, never under a path that a client made up."""
        resource = request.match_info.route.resource
        route = "unknown" if resource is None else resource.canonical
        self._responses.labels(route, str(response.status)).inc()

    def reply(self) -> web.Response:
        """The answer to ``GET /metrics``."""
        return web.Response(body=generate_latest(self._registry), headers={"Content-Type": CONTENT_TYPE_LATEST})


class _LaneCollector(Collector):
    """Reads loads and publisher counters at scrape time: no copy of a number that lives elsewhere."""

    def __init__(self, lanes: Lanes) -> None:
        self._lanes = lanes

    def collect(self) -> Iterator[Metric]:
        loads = {str(lane.dp_rank): lane.loop.load() for lane in self._lanes}
        for name, text in _GAUGES.items():
            yield _fill(GaugeMetricFamily(f"{_PREFIX}_{name}", text, labels=["dp_rank"]), loads, attrgetter(name))
        for name, text in _TOTALS.items():
            family = CounterMetricFamily(f"{_PREFIX}_{name}", text, labels=["dp_rank"])
            yield _fill(family, loads, attrgetter(f"totals.{name}"))
        yield from self._events()

    def _events(self) -> Iterator[Metric]:
        totals = CounterMetricFamily(f"{_PREFIX}_kv_events", "The publisher's counters.", labels=["dp_rank", "what"])
        alive = GaugeMetricFamily(f"{_PREFIX}_kv_events_alive", "1 while events can leave.", labels=["dp_rank"])
        last = GaugeMetricFamily(f"{_PREFIX}_kv_events_last_seq", "Number of the last batch.", labels=["dp_rank"])
        for lane in self._lanes:
            if lane.events is not None:
                last.add_metric([str(lane.dp_rank)], lane.events.last_seq)
                alive.add_metric([str(lane.dp_rank)], lane.events.alive)
                for what, value in lane.events.counters().items():
                    totals.add_metric([str(lane.dp_rank), what], value)
        yield from (totals, last, alive)


def _fill(
    family: GaugeMetricFamily | CounterMetricFamily, loads: dict[str, Load], read: Callable[[Load], float]
) -> Metric:
    for rank, load in loads.items():
        family.add_metric([rank], read(load))
    return family
