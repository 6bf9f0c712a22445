"""The ceiling: what one cache as large as all replicas' together would have found, asked by everybody in turn."""

from __future__ import annotations

from array import array

from bench.fleet.engine import SHARED, findable, new_cache
from bench.fleet.outcome import Hits
from bench.workloads.request import Workload

__all__ = ["pooled_hits"]


def pooled_hits(workload: Workload, *, blocks: int) -> Hits:
    """Every prompt is looked up, computed and over at once, in the order of arrival."""
    cache, hits = new_cache(blocks), Hits(workload.block_tokens)
    for ask in workload.asks:
        path = array("Q", ask.blocks)
        table = cache.open(path[: findable(ask, workload.block_tokens)], SHARED)
        hits.add(ask, cached_tokens=table.held_tokens * workload.block_tokens)
        cache.grow(table, length=min(len(path), blocks))
        cache.close(table, path, length=len(table.blocks))
        cache.take_events()  # nobody listens, and they would pile up
    return hits
