"""Whether the contract held during a run: each check takes values and returns the breaches it found.

The failures looked for are the silent ones: nothing crashes when an engine and a router disagree on the block width,
the hit rate is merely 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from bench.router_view import LIVE, ExplainedLane, FleetView, LaneView, ReplicaView, TokenCounts
from bench.tally import Tally

__all__ = [
    "Breach",
    "Holding",
    "Probe",
    "book_breaches",
    "fault_breaches",
    "index_breaches",
    "judge",
    "probe_breaches",
    "request_breaches",
    "stream_breaches",
    "unproved_breaches",
    "width_breaches",
]


class Breach(msgspec.Struct, frozen=True):
    """One broken promise: where, and what about it."""

    where: str
    detail: str

    def __str__(self) -> str:
        return f"{self.where}: {self.detail}"


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt that a replica has answered before, repeated on an idle fleet whose router has applied every event.

    ``lane`` is what the router explained beforehand, ``booked`` what it entered for the request; the other counts are
    those of the answer.
    """

    lane: ExplainedLane
    prompt_tokens: int
    cached_tokens: int
    booked: TokenCounts


class Holding(msgspec.Struct, frozen=True, kw_only=True):
    """What one lane's engine holds and what the index says it holds: copies by a block's hash and tier."""

    where: str
    engine: Mapping[tuple[str, str], int]
    index: Mapping[tuple[str, str], int]


def judge(
    fleet: FleetView,
    tally: Tally,
    holdings: Sequence[Holding],
    probes: Sequence[Probe],
    *,
    width: int,
    expected: int,
) -> list[Breach]:
    """Every breach that a settled fleet, ``expected`` requests and their probes show; ``width`` in tokens."""
    return [
        *request_breaches(tally, expected=expected),
        *width_breaches(fleet, width=width),
        *stream_breaches(fleet),
        *index_breaches(holdings),
        *book_breaches(fleet, tally),
        *fault_breaches(fleet),
        *unproved_breaches(fleet, probes),
        *probe_breaches(probes, width=width),
    ]


def width_breaches(fleet: FleetView, *, width: int) -> list[Breach]:
    """Lanes that advertise or emit anything but ``width`` tokens a block; an idle replica need not have emitted."""
    breaches = []
    for replica, lane in _lanes(fleet):
        advertised, emitted = lane.advertised_block_size, lane.emitted_block_size
        if advertised != width:
            breaches.append(Breach(_lane(replica, lane), f"advertised block width is {advertised}, not {width}"))
        if emitted != width and (emitted is not None or replica.requests.routed):
            breaches.append(Breach(_lane(replica, lane), f"emitted block width is {emitted}, not {width}"))
    return breaches


def stream_breaches(fleet: FleetView) -> list[Breach]:
    """Lanes whose event stream is not live at the end, lost batches, or never carried any."""
    return [
        Breach(_lane(replica, lane), f"event stream is {lane.stream} at {lane.last_seq}, {lane.lost} batches lost")
        for replica, lane in _lanes(fleet)
        if lane.stream != LIVE or lane.lost or (replica.requests.routed and lane.last_seq < 0)
    ]


def unproved_breaches(fleet: FleetView, probes: Sequence[Probe]) -> list[Breach]:
    """Replicas whose hits no probe has checked.

    A workload's own sums prove nothing: a router that is told late predicts 0, and is right.
    """
    probed = {probe.lane.url for probe in probes}
    return [
        Breach(replica.url, f"{hits} hit tokens were predicted or reported, and no prompt was repeated to check them")
        for replica in fleet.replicas
        if (hits := max(replica.tokens.predicted_hit, replica.tokens.reported_hit)) and replica.url not in probed
    ]


def index_breaches(holdings: Sequence[Holding]) -> list[Breach]:
    """Lanes of which the index says anything but what their engines hold.

    How far a workload's predictions were from its hits proves nothing: blocks come and go while a request waits.
    """
    breaches = []
    for held in holdings:
        dropped, unknown = held.index.items() - held.engine.items(), held.engine.items() - held.index.items()
        if dropped or unknown:
            lacks = f"of the engine's {len(held.engine)} blocks the index lacks {len(unknown)}"
            breaches.append(Breach(held.where, f"{lacks}; it has {len(dropped)} others"))
    return breaches


def fault_breaches(fleet: FleetView) -> list[Breach]:
    """Faults that the router itself found."""
    return [
        Breach(replica.url, f"{fault.code}: {fault.detail}") for replica in fleet.replicas for fault in replica.faults
    ]


def request_breaches(tally: Tally, *, expected: int) -> list[Breach]:
    """Requests that failed, and requests that nobody heard of again."""
    breaches = []
    if tally.failures:
        breaches.append(Breach("client", f"{len(tally.failures)} requests failed, the first: {tally.failures[0]}"))
    ended = len(tally.replies) + len(tally.failures)
    if ended != expected:
        breaches.append(Breach("client", f"{ended} of {expected} requests ended"))
    return breaches


def book_breaches(fleet: FleetView, tally: Tally) -> list[Breach]:
    """Replicas for which the router's sums are not those of the answers that clients saw."""
    breaches = []
    for replica in fleet.replicas:
        replies = tally.of(replica.url)
        seen = (
            len(replies),
            sum(reply.prompt_tokens for reply in replies),
            sum(reply.cached_tokens for reply in replies),
        )
        books = (replica.requests.routed, replica.tokens.prompt, replica.tokens.reported_hit)
        if books != seen:
            breaches.append(Breach(replica.url, f"router counts {_sums(books)}, clients saw {_sums(seen)}"))
    return breaches


def probe_breaches(probes: Sequence[Probe], *, width: int) -> list[Breach]:
    """Prompts not tokenised alike, not hashed at ``width``, or not cached for exactly the tokens predicted."""
    return [Breach(probe.lane.url, detail) for probe in probes for detail in _disagreements(probe, width)]


def _disagreements(probe: Probe, width: int) -> Iterator[str]:
    lane = probe.lane
    if lane.block_size != width:
        yield f"router hashes at {lane.block_size} tokens a block, not {width}"
    if lane.prompt_tokens != probe.prompt_tokens:
        yield f"router counts {lane.prompt_tokens} tokens in a prompt, the engine {probe.prompt_tokens}"
    if lane.matched_tokens != probe.cached_tokens:
        yield f"{lane.matched_tokens} cached tokens predicted for a repeated prompt, {probe.cached_tokens} reported"
    if (promised := probe.booked.predicted_hit) != (found := probe.booked.reported_hit):
        yield f"{promised} hit tokens were predicted of a prompt that was repeated on an idle fleet, {found} reported"
    if not probe.cached_tokens and probe.prompt_tokens > width:
        yield f"nothing of a prompt of {probe.prompt_tokens} tokens is cached just after it was answered"


def _sums(sums: tuple[int, int, int]) -> str:
    return "{} requests, {} prompt tokens, {} cached".format(*sums)


def _lanes(fleet: FleetView) -> Iterator[tuple[ReplicaView, LaneView]]:
    return ((replica, lane) for replica in fleet.replicas for lane in replica.lanes)


def _lane(replica: ReplicaView, lane: LaneView) -> str:
    return f"{replica.url} lane {lane.dp_rank}"
