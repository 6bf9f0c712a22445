"""Metric families as values: what a worker tells its siblings, and many workers' as one, told apart by a label."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import msgspec
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

__all__ = ["Family", "decode_families", "encode_families", "exposition_of_all"]

WORKER = "worker"


class Family(msgspec.Struct, frozen=True, array_like=True):
    """One metric; ``samples`` are names, labels and values."""

    name: str
    text: str
    kind: str
    samples: list[tuple[str, dict[str, str], float]]


def encode_families(registry: CollectorRegistry) -> bytes:
    """All that a registry holds now."""
    return msgspec.msgpack.encode([_family(metric) for metric in registry.collect()])


def decode_families(raw: bytes) -> list[Family]:
    """What a sibling sent.

    Raises:
        msgspec.MsgspecError: it is something else.
    """
    return msgspec.msgpack.decode(raw, type=list[Family])


def exposition_of_all(by_worker: Mapping[int, Iterable[Family] | None]) -> bytes:
    """The text format of every worker's samples; None: a worker that did not answer."""
    registry = CollectorRegistry()
    registry.register(_AllWorkers(by_worker))
    return generate_latest(registry)


class _AllWorkers(Collector):
    def __init__(self, by_worker: Mapping[int, Iterable[Family] | None]) -> None:
        self._by_worker = by_worker

    def collect(self) -> Iterator[Metric]:
        up = GaugeMetricFamily("kvsteer_worker_up", "Whether a worker of the router answers.", labels=(WORKER,))
        merged: dict[str, Metric] = {}
        for worker, families in self._by_worker.items():
            up.add_metric((str(worker),), families is not None)
            for family in families or ():
                metric = merged.setdefault(family.name, Metric(family.name, family.text, family.kind))
                for name, labels, value in family.samples:
                    metric.add_sample(name, {**labels, WORKER: str(worker)}, value)
        yield up
        yield from merged.values()


def _family(metric: Metric) -> Family:
    samples = [(sample.name, sample.labels, float(sample.value)) for sample in metric.samples]
    return Family(metric.name, metric.documentation, metric.type, samples)
