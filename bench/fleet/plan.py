"""What a simulated fleet is made of. Values only; the command line's defaults are read from here."""

from __future__ import annotations

import msgspec

from contract.kv_events_config import KVEventsConfig

__all__ = ["FleetPlan"]


class FleetPlan(msgspec.Struct, frozen=True, kw_only=True):
    """``blocks`` is each replica's cache; ``load`` its busy share if nothing were ever found in one.

    ``speeds`` are repeated over the replicas and count relative to each other: the fleet's sum follows from ``load``.
    An output token takes as long as ``decode_cost`` prompt tokens, whatever else runs. Events arrive ``lag`` seconds
    after their step, a share ``loss`` of the batches never, for each router by its own luck. At ``restarts`` moments
    one replica loses everything and is away for ``away`` seconds. Requests are dealt to the ``routers`` in turn, and
    each knows only what it sent itself and what engines say.
    """

    replicas: int = 8
    blocks: int = 5_000
    load: float = 0.7
    speeds: tuple[float, ...] = (1.0,)
    decode_cost: float = 0.0
    lag: float = 0.0
    loss: float = 0.0
    restarts: int = 0
    away: float = 5.0
    routers: int = 1
    log_batches: int = KVEventsConfig().buffer_steps
    seed: int = 0

    @property
    def kept_batches(self) -> int:
        """What engines keep of their event batches for replay; nobody asks where none is late or lost."""
        return self.log_batches if self.lag or self.loss or self.restarts else 1

    @property
    def relative_speeds(self) -> list[float]:
        """One for each replica; their mean is 1."""
        taken = [self.speeds[place % len(self.speeds)] for place in range(self.replicas)]
        return [speed * self.replicas / sum(taken) for speed in taken]
