"""No events: a replica is believed to hold what was sent to it, last used first, as far as its cache has room.

The same cost and the same chooser as ours, and told the cache's true size, which no engine says: what events are worth
is the difference.
"""

from __future__ import annotations

import math

from bench.fleet.policies.chooser_rule import ChooserRule
from bench.fleet.rule import Rule, Surroundings
from router.choice.kv_cost import KvAware
from router.choice.memory import Memory, mark_step
from router.choice.routed import RoutedPrompts

__all__ = ["history"]


def history(around: Surroundings) -> Rule:
    """A memory of a key for every so many blocks, of as many blocks as the cache has."""
    room = max(around.blocks // mark_step(around.block_tokens), 1)
    memories: list[Memory] = [RoutedPrompts(max_keys=room, keep_seconds=math.inf) for _ in around.handles]
    return ChooserRule(around, KvAware(), memories, believes_events=False)
