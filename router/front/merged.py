"""Many workers' views of one fleet as one: what each of them counts for itself is added up. Pure.

Streams, blocks and states are those of the first: each worker follows every stream, so all of them see the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from router.front.views import FleetView, HitRate, LaneView, ReplicaView, RequestCounts, TokenSums, rate
from router.proof.fault import Sighting
from router.proof.tally import WindowSums

__all__ = ["merged_fleet"]


def merged_fleet(own: FleetView, others: Iterable[FleetView]) -> FleetView:
    """The replicas of ``own``, with what the others know of the same ones."""
    by_url: dict[str, list[ReplicaView]] = {}
    for view in (own, *others):
        for replica in view.replicas:
            by_url.setdefault(replica.url, []).append(replica)
    return FleetView([_replica(by_url[replica.url]) for replica in own.replicas])


def _replica(views: Sequence[ReplicaView]) -> ReplicaView:
    tokens = TokenSums(
        prompt=sum(view.tokens.prompt for view in views),
        predicted_hit=sum(view.tokens.predicted_hit for view in views),
        reported_hit=sum(view.tokens.reported_hit for view in views),
    )
    reports = any(view.hit_rate.reported is not None for view in views)
    return msgspec.structs.replace(
        views[0],
        tokens=tokens,
        hit_rate=HitRate(
            predicted=rate(tokens.predicted_hit, tokens.prompt),
            reported=rate(tokens.reported_hit, tokens.prompt) if reports else None,
        ),
        requests=RequestCounts(
            routed=sum(view.requests.routed for view in views),
            in_flight=sum(view.requests.in_flight for view in views),
        ),
        lanes=[_lane([lane, *_same(lane, views[1:])]) for lane in views[0].lanes],
        faults=_faults(views),
    )


def _same(lane: LaneView, views: Iterable[ReplicaView]) -> list[LaneView]:
    return [other for view in views for other in view.lanes if other.dp_rank == lane.dp_rank]


def _lane(views: Sequence[LaneView]) -> LaneView:
    return msgspec.structs.replace(
        views[0],
        in_flight=sum(view.in_flight for view in views),
        queued_tokens=sum(view.queued_tokens for view in views),
        window=WindowSums(
            requests=sum(view.window.requests for view in views),
            prompt=sum(view.window.prompt for view in views),
            predicted_hit=sum(view.window.predicted_hit for view in views),
            reported_hit=sum(view.window.reported_hit for view in views),
            difference=sum(view.window.difference for view in views),
        ),
    )


def _faults(views: Iterable[ReplicaView]) -> list[Sighting]:
    """Each fault once, as whoever saw it first tells it."""
    found: dict[tuple[str, int | None], Sighting] = {}
    for view in views:
        for fault in view.faults:
            key = (fault.code, fault.dp_rank)
            if key not in found or fault.first_seen < found[key].first_seen:
                found[key] = fault
    return list(found.values())
