"""Which TCP ports a process takes: one for each replica's HTTP, one or two for each data-parallel rank's publisher.

They are handed out in order, so that anybody can compute them: replica ``i`` serves HTTP on ``port + i``, its rank
``r`` publishes on ``event port + i * dp_size + r``, and replay goes likewise. Port 0 lets the system choose. Values
only; whether somebody else holds a port shows when it is bound.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

import msgspec

from contract.endpoint import MAX_PORT, binds, bracket, for_rank, is_wildcard, parse_tcp
from contract.kv_events_config import KVEventsConfig

__all__ = ["PortPlanError", "check_ports", "events_of_replica"]

_TCP = "tcp://"


class PortPlanError(ValueError):
    """Ports that overlap or run past 65535; the message names both sides."""


class _Span(msgspec.Struct, frozen=True):
    """Consecutive ports on one host, half-open as ``range`` is."""

    name: str
    host: str
    ports: range

    def __str__(self) -> str:
        last = self.ports[-1]
        return f"{self.name} {self.ports.start}" if len(self.ports) == 1 else f"{self.name}s {self.ports.start}-{last}"

    def collides(self, other: _Span) -> bool:
        same_host = self.host == other.host or is_wildcard(self.host) or is_wildcard(other.host)
        return same_host and self.ports.start < other.ports.stop and other.ports.start < self.ports.stop


def events_of_replica(config: KVEventsConfig, *, replica: int, dp_size: int) -> KVEventsConfig:
    """The config of one replica's rank 0: endpoints moved by ``replica * dp_size`` ranks."""
    shift = replica * dp_size
    replay = config.replay_endpoint
    return msgspec.structs.replace(
        config,
        endpoint=for_rank(config.endpoint, shift),
        replay_endpoint=None if replay is None else for_rank(replay, shift),
    )


def check_ports(*, host: str, port: int, replicas: int, dp_size: int, events: KVEventsConfig | None) -> None:
    """Refuse a plan in which two sockets want one port, or in which a port cannot exist.

    Raises:
        PortPlanError: overlapping ranges, a range past 65535, or port 0 where ranks must be consecutive.
        EndpointError: an endpoint of ``events`` that cannot be read.
    """
    spans = list(_spans(host=host, port=port, replicas=replicas, dp_size=dp_size, events=events))
    for span in spans:
        if span.ports[-1] > MAX_PORT:
            raise PortPlanError(f"{span} would run past {MAX_PORT}")
    for one, other in combinations(spans, 2):
        if one.collides(other):
            raise PortPlanError(f"{one} and {other} overlap")


def _spans(*, host: str, port: int, replicas: int, dp_size: int, events: KVEventsConfig | None) -> Iterator[_Span]:
    if port:
        yield _Span("HTTP port", bracket(host), range(port, port + replicas))
    if events is None or not events.enabled:
        return
    bound = binds(events.endpoint, events.bind)
    yield from _event_span("event port", events.endpoint, lanes=replicas * dp_size, dp_size=dp_size, bound=bound)
    if events.replay_endpoint is not None:
        yield from _event_span("replay port", events.replay_endpoint, lanes=replicas * dp_size, dp_size=dp_size)


def _event_span(name: str, endpoint: str, *, lanes: int, dp_size: int, bound: bool = True) -> Iterator[_Span]:
    """The span of one kind of event socket; none for a local name, for port 0, and where the publisher connects."""
    if not endpoint.startswith(_TCP):
        for_rank(endpoint, lanes)  # a scheme without a rule is refused here
        return
    address = parse_tcp(endpoint)
    if not address.port and dp_size > 1:
        raise PortPlanError(f"{name} 0 ({endpoint!r}) needs dp_size 1, got {dp_size}: ranks sit on consecutive ports")
    if address.port and bound:
        yield _Span(name, address.host, range(address.port, address.port + lanes))
