"""What a router tells of itself: its fleet, its metrics, and why a request went where it went.

One process knows all of it. With several workers, each knows its own part, and asks its siblings for theirs.
"""

from __future__ import annotations

import time
from typing import Protocol

import msgspec
from prometheus_client import CollectorRegistry

from router.fleet.fleet import Fleet
from router.front.families import decode_families, encode_families, exposition_of_all
from router.front.merged import merged_fleet
from router.front.metrics import exposition
from router.front.receipts import Receipts, receipt_view, worker_of
from router.front.siblings import Siblings
from router.front.views import FleetView, fleet_view
from router.intake.index import BlockIndex
from router.proof.diagnosis import Diagnosis

__all__ = ["Overview", "OwnOverview", "WholeOverview"]


class Overview(Protocol):
    """What the operator's pages are made of."""

    async def fleet(self) -> FleetView:
        """Every replica as it stands."""
        ...

    async def receipt(self, number: str) -> bytes | None:
        """A receipt as JSON; None where it is not remembered."""
        ...

    async def metrics(self) -> bytes:
        """Prometheus's text format."""
        ...


class OwnOverview:
    """One process's `Overview`."""

    def __init__(
        self,
        fleet: Fleet,
        index: BlockIndex,
        diagnosis: Diagnosis,
        *,
        receipts: Receipts,
        registry: CollectorRegistry,
    ) -> None:
        self._fleet = fleet
        self._index = index
        self._diagnosis = diagnosis
        self._receipts = receipts
        self._registry = registry

    async def fleet(self) -> FleetView:
        """See `Overview`."""
        return fleet_view(self._fleet.replicas, self._index, review=self._diagnosis.review, now=time.time())

    async def receipt(self, number: str) -> bytes | None:
        """See `Overview`."""
        receipt = self._receipts.get(number)
        return None if receipt is None else msgspec.json.encode(receipt_view(receipt))

    async def metrics(self) -> bytes:
        """See `Overview`."""
        return exposition(self._registry)

    def families(self) -> bytes:
        """The metrics as a sibling wants them."""
        return encode_families(self._registry)


class WholeOverview:
    """All workers' `Overview`, seen from one of them. A sibling that does not answer is left out."""

    def __init__(self, own: OwnOverview, siblings: Siblings) -> None:
        self._own = own
        self._siblings = siblings

    async def fleet(self) -> FleetView:
        """See `Overview`."""
        told = await self._siblings.ask_all("/replicas")
        others = [msgspec.json.decode(raw, type=FleetView) for raw in told.values() if raw is not None]
        return merged_fleet(await self._own.fleet(), others)

    async def receipt(self, number: str) -> bytes | None:
        """See `Overview`. The id tells whose it is."""
        place = worker_of(number)
        if place in self._siblings.places:
            return await self._siblings.ask(place, f"/requests/{number}")
        return await self._own.receipt(number)

    async def metrics(self) -> bytes:
        """See `Overview`. Samples have the worker as a label."""
        told = await self._siblings.ask_all("/families")
        by_worker = {place: None if raw is None else decode_families(raw) for place, raw in told.items()}
        by_worker[self._siblings.own_place] = decode_families(self._own.families())
        return exposition_of_all(dict(sorted(by_worker.items())))
