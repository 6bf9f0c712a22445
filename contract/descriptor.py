"""The ``kv_events`` object of ``/server_info``: what an engine tells a router about its event streams.

Keys and null cases are SGLang 0.5.23's (``describe_kv_events_publisher``); ``block_size`` is the block width, never the
physical page, which is the whole point of the object.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from contract.endpoint import MAX_PORT, Address, EndpointError, bracket, is_wildcard, parse_tcp
from contract.geometry import block_width
from contract.kv_events_config import KVEventsConfig

__all__ = ["Descriptor", "DescriptorError", "LaneAddress", "describe", "parse_descriptor"]

LOAD_TOPIC = "load"
_Port = Annotated[int, msgspec.Meta(ge=1, le=MAX_PORT)]
_Positive = Annotated[int, msgspec.Meta(ge=1)]


class DescriptorError(ValueError):
    """A ``kv_events`` object that no router can use; the message names the field."""


class LaneAddress(msgspec.Struct, frozen=True):
    """Where one data-parallel rank publishes, and where it answers replay requests (None: nowhere)."""

    dp_rank: int
    endpoint: str
    replay_endpoint: str | None


class Descriptor(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One engine's event streams: rank r publishes on ``endpoint_port_base + r``. DCP adds no streams."""

    publisher: str
    endpoint_host: str
    endpoint_port_base: _Port
    topic: str
    block_size: _Positive
    dp_size: _Positive
    load_endpoint_port_base: _Port | None = None
    load_topic: str | None = None
    replay_endpoint_port_base: _Port | None = None

    def lanes(self, replica_host: str) -> list[LaneAddress]:
        """One address a rank, none past port 65535; a wildcard host is the host the replica was reached at."""
        host = bracket(replica_host) if is_wildcard(self.endpoint_host) else self.endpoint_host
        ranks = range(min(self.dp_size, MAX_PORT - self.endpoint_port_base + 1))
        return [
            LaneAddress(rank, str(Address(host, self.endpoint_port_base + rank)), self._replay(host, rank))
            for rank in ranks
        ]

    def _replay(self, host: str, rank: int) -> str | None:
        base = self.replay_endpoint_port_base
        return None if base is None or base + rank > MAX_PORT else str(Address(host, base + rank))


def describe(
    config: KVEventsConfig | None,
    *,
    page_size: int | None,
    dcp_size: int,
    dp_size: int,
    attn_dp_size: int = 1,
    load_publish_endpoint: str | None = None,
) -> Descriptor | None:
    """Build the descriptor, or ``None`` where there is nothing a router could subscribe to.

    ``None`` when events are off, the endpoint is not a ``tcp://`` one with a fixed port, or the page size is unknown.
    """
    if config is None or not config.enabled or not page_size or page_size < 1:
        return None
    address = _fixed_address(config.endpoint)
    if address is None:
        return None
    streams = dp_size * attn_dp_size
    replay = _fixed_address(config.replay_endpoint)
    load = _load_port(load_publish_endpoint, address=address, replay=replay, streams=streams)
    return Descriptor(
        publisher=config.publisher,
        endpoint_host=address.host,
        endpoint_port_base=address.port,
        topic=config.topic,
        block_size=block_width(page_size=page_size, dcp_size=dcp_size),
        dp_size=streams,
        load_endpoint_port_base=load,
        load_topic=None if load is None else LOAD_TOPIC,
        replay_endpoint_port_base=None if replay is None else replay.port,
    )


def _fixed_address(endpoint: str | None) -> Address | None:
    """Host and port of an endpoint that a router could connect to; None for ipc, inproc, no port and port 0."""
    try:
        address = parse_tcp(endpoint or "")
    except EndpointError:
        return None
    return address if address.port else None


def _load_port(endpoint: str | None, *, address: Address, replay: Address | None, streams: int) -> int | None:
    """First port of the load sockets: after the event ports and past the replay ports, or where the flag says.

    Only a wildcard host has them, and ports that overlap another range are dropped rather than shared.
    """
    if endpoint in (None, "off") or not is_wildcard(address.host):
        return None
    taken = [range(base.port, base.port + streams) for base in (address, replay) if base is not None]
    if endpoint == "auto":
        port = address.port + streams
        for used in taken:
            port = used.stop if _overlap(range(port, port + streams), used) else port
    else:
        explicit = _fixed_address(endpoint)
        if explicit is None:
            return None
        port = explicit.port
    wanted = range(port, port + streams)
    return None if port > MAX_PORT or any(_overlap(wanted, used) for used in taken) else port


def _overlap(one: range, other: range) -> bool:
    return one.start < other.stop and other.start < one.stop


def parse_descriptor(server_info: object) -> Descriptor | None:
    """The descriptor inside a ``/server_info`` answer; ``None`` where the engine says that it publishes nothing.

    Raises:
        DescriptorError: the answer is no object, or its ``kv_events`` lacks a field or has one out of range.
    """
    if not isinstance(server_info, dict):
        raise DescriptorError(f"/server_info must be an object, got {type(server_info).__name__}")
    raw = server_info.get("kv_events")
    if raw is None:
        return None
    try:
        return msgspec.convert(raw, Descriptor)
    except msgspec.ValidationError as error:
        raise DescriptorError(f"kv_events of /server_info: {error}") from None
