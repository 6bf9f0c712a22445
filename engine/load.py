"""How busy one lane is, and what it has done since it started; tokens unless a name says otherwise."""

from __future__ import annotations

import msgspec

__all__ = ["Load", "Totals"]


class Totals(msgspec.Struct, kw_only=True):
    """Counts since the start.

    ``prompt_tokens`` and ``cached_tokens`` are of requests when first admitted, so that their ratio is the hit rate.
    ``stateless_tokens`` were in the cache's blocks too, but no snapshot of the model's states was kept behind them: a
    router that goes by events predicts them, and they are computed again. ``prefilled_tokens`` is what prefill chunks
    computed, recomputation after a preemption included.
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    stateless_tokens: int = 0
    prefilled_tokens: int = 0
    generated_tokens: int = 0
    evicted_tokens: int = 0
    evicted_snapshots: int = 0
    preemptions: int = 0


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """One moment between two steps.

    ``used_tokens`` are the room of running requests, ``evictable_tokens`` are held for reuse only, both out of
    ``total_tokens`` and in whole blocks. ``pending_prefill_tokens`` are prompt tokens of running and waiting requests
    that are still to be computed; those of waiting ones may yet be found in the cache. ``held_snapshots`` counts kept
    states of models that have some.
    """

    running: int
    waiting: int
    max_running: int
    used_tokens: int
    evictable_tokens: int
    total_tokens: int
    pending_prefill_tokens: int
    held_snapshots: int
    totals: Totals
