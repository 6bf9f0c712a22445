"""Rules for ZMQ endpoints that both sides must read alike: ranks, wildcards, who binds, IPv6.

Source: SGLang 0.5.23 and vLLM 0.33.0. Where they refuse (``ipc://`` at rank 1 and above) the ``_dp<rank>`` suffix that
both give ``inproc://`` is used for ``ipc://`` too.
"""

from __future__ import annotations

import msgspec

__all__ = [
    "MAX_PORT",
    "Address",
    "EndpointError",
    "binds",
    "bracket",
    "for_rank",
    "is_wildcard",
    "needs_ipv6",
    "parse_tcp",
]

MAX_PORT = 65535
_WILDCARD_HOSTS = frozenset({"*", "0.0.0.0", "::", "[::]"})
_LOCAL_SCHEMES = ("ipc://", "inproc://")
_TCP = "tcp://"


class EndpointError(ValueError):
    """An endpoint that cannot be used; the message names it."""


class Address(msgspec.Struct, frozen=True):
    """Host and port of a ``tcp://`` endpoint; an IPv6 host keeps its brackets."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{_TCP}{self.host}:{self.port}"


def parse_tcp(endpoint: str) -> Address:
    """Host and port of a ``tcp://`` endpoint.

    Raises:
        EndpointError: another scheme, no port, a port outside [0, 65535], or an IPv6 address without brackets.
    """
    host, _, port = endpoint.removeprefix(_TCP).rpartition(":")
    if not endpoint.startswith(_TCP) or not host:
        raise EndpointError(f"{endpoint!r} is not tcp://HOST:PORT")
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        raise EndpointError(f"{endpoint!r}: an IPv6 address needs brackets")
    if not (port.isascii() and port.isdigit()) or int(port) > MAX_PORT:
        raise EndpointError(f"{endpoint!r}: the port must be a number in [0, {MAX_PORT}]")
    return Address(host, int(port))


def for_rank(endpoint: str, rank: int) -> str:
    """The endpoint of one data-parallel rank: tcp port + rank, ``_dp<rank>`` behind a local name; rank 0 is unchanged.

    Port 0 (the system chooses) stays 0 at every rank.

    Raises:
        EndpointError: a scheme that has no rule, or a port past 65535.
    """
    if rank == 0:
        return endpoint
    if endpoint.startswith(_LOCAL_SCHEMES):
        return f"{endpoint}_dp{rank}"
    address = parse_tcp(endpoint)
    port = address.port + rank if address.port else 0
    if port > MAX_PORT:
        raise EndpointError(f"{endpoint!r} at data-parallel rank {rank} is port {port}, above {MAX_PORT}")
    return str(Address(address.host, port))


def binds(endpoint: str, bind: bool | None) -> bool:
    """Whether a publisher binds (or connects, and leaves the binding to its consumer): SGLang 0.5.23's rule."""
    if bind is not None:
        return bind
    return any(mark in endpoint for mark in ("*", "::", "0.0.0.0")) or endpoint.startswith(_LOCAL_SCHEMES)


def is_wildcard(host: str) -> bool:
    """Whether an advertised host means "the host you reached me at"."""
    return host in _WILDCARD_HOSTS


def bracket(host: str) -> str:
    """The host as it stands in a ``tcp://`` endpoint: an IPv6 address in brackets."""
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def needs_ipv6(endpoint: str) -> bool:
    """Whether a socket must have IPv6 switched on before it binds or connects here."""
    return endpoint.startswith(f"{_TCP}[")
