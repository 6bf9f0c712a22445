"""Which replicas may be sent requests now: those that are healthy and whose breaker agrees, by the model asked for.

Kept up by what changes. A breaker that is open changes by itself as time passes, so those few are looked at each time.
"""

from __future__ import annotations

from collections import OrderedDict
from functools import partial

import msgspec

from router.fleet.identity import Identity
from router.fleet.lane import Lane
from router.fleet.replica import Replica
from router.fleet.served import Served
from router.intake.index import LaneHandle

__all__ = ["Roster"]

MAX_MODELS = 256
"""Names that were asked for last; another one costs a look at every replica."""


class _Standing(msgspec.Struct, frozen=True):
    """What of a replica matters here. Handles change with the engine behind a lane."""

    admitted: bool = False
    identity: Identity | None = None
    lanes: tuple[tuple[Lane, LaneHandle], ...] = ()


class Roster:
    """Of one fleet. Times are handed in."""

    def __init__(self) -> None:
        self._replicas: dict[Replica, _Standing] = {}
        self._tripped: dict[Replica, None] = {}
        self._served: OrderedDict[str | None, Served] = OrderedDict()

    def enter(self, replica: Replica) -> None:
        """A replica of the fleet from now on."""
        self._replicas[replica] = _Standing()
        replica.breaker.when_open(partial(self._tripped.setdefault, replica))
        self.update(replica)

    def leave(self, replica: Replica) -> None:
        """It is sent nothing more."""
        del self._replicas[replica]
        replica.breaker.when_open(None)
        self._tripped.pop(replica, None)
        for served in self._served.values():
            served.drop(replica)

    def update(self, replica: Replica) -> None:
        """Its health, its models or its lanes may be others than before; one of no fleet concerns nobody."""
        if replica in self._replicas:
            self._settle(replica, admitted=replica.healthy and replica not in self._tripped)

    def served(self, model: str | None, *, now: float) -> Served:
        """The replicas that may be sent a request for a model, or for any where none is named. It stays up to date."""
        if self._tripped:
            self._look_at_tripped(now)
        served = self._served.get(model)
        if served is None:
            there = (replica for replica, standing in self._replicas.items() if standing.admitted)
            served = Served((replica for replica in there if replica.serves(model)), kept=True)
            if served:
                self._keep(model, served)
        else:
            self._served.move_to_end(model)
        return served

    def _keep(self, model: str | None, served: Served) -> None:
        self._served[model] = served
        if len(self._served) > MAX_MODELS:
            self._served.popitem(last=False)[1].close()

    def _look_at_tripped(self, now: float) -> None:
        for replica in list(self._tripped):
            if replica.breaker.closed:
                del self._tripped[replica]
            self._settle(replica, admitted=replica.healthy and replica.breaker.admits(now=now))

    def _settle(self, replica: Replica, *, admitted: bool) -> None:
        standing = _Standing(admitted, replica.identity, tuple((lane, lane.handle) for lane in replica.lanes))
        if standing == self._replicas[replica]:
            return
        self._replicas[replica] = standing
        for model, served in self._served.items():
            if admitted and replica.serves(model):
                served.put(replica)
            else:
                served.drop(replica)
