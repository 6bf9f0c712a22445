"""Every rule that a fleet can be simulated with, by name, and what it takes to run it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from bench.fleet.policies.ablation import ABLATED, Without
from bench.fleet.policies.chooser_rule import ChooserRule
from bench.fleet.policies.dynamo_cost import DynamoCost
from bench.fleet.policies.history import history
from bench.fleet.policies.sglang_cache_aware import SglangCacheAware
from bench.fleet.rule import Rule, Surroundings
from router.choice.memory import Memory
from router.choice.overlap import Overlap
from router.choice.policy import APPROX, POLICIES, memory_of
from router.choice.recent import RecentPrompts

__all__ = ["ENTRIES", "SHOWN", "PolicyEntry"]


class PolicyEntry(msgspec.Struct, frozen=True, kw_only=True):
    """``follows_events``: it looks into the index; without it nobody listens, and nothing is spent on it."""

    name: str
    make: Callable[[Surroundings], Rule]
    follows_events: bool = False


def _routers_own(name: str) -> PolicyEntry:
    """A policy that the router itself has."""
    looks, believes = name in {"kv", APPROX}, name == "kv"

    def make(around: Surroundings) -> Rule:
        memories = [memory_of(name) for _ in around.handles]
        return ChooserRule(around, POLICIES[name](), memories, believes_events=believes, looks=looks)

    return PolicyEntry(name=name, make=make, follows_events=believes)


def _without(term: str) -> PolicyEntry:
    """``kv`` less one term of its cost."""

    def make(around: Surroundings) -> Rule:
        return ChooserRule(around, Without(term), [memory_of("kv") for _ in around.handles])

    return PolicyEntry(name=f"kv-without-{term}", make=make, follows_events=True)


def _overlap(around: Surroundings) -> Rule:
    memories: list[Memory] = [RecentPrompts() for _ in around.handles]
    return ChooserRule(around, Overlap(), memories, remembers=False)


_OTHERS = (
    PolicyEntry(name="overlap", make=_overlap, follows_events=True),
    PolicyEntry(name="history", make=history),
    PolicyEntry(name="dynamo-cost", make=DynamoCost, follows_events=True),
    PolicyEntry(name="sglang-cache-aware", make=SglangCacheAware),
)
ENTRIES: Mapping[str, PolicyEntry] = {
    entry.name: entry for entry in (*map(_routers_own, POLICIES), *map(_without, ABLATED), *_OTHERS)
}

SHOWN = ("kv", "round_robin", "random", "least_loaded", *(entry.name for entry in _OTHERS))
"""What is compared when nobody says what."""
