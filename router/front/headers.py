"""Which header fields travel on, and which belong to one connection only (RFC 9110, section 7.6.1)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

__all__ = [
    "CLIENT_ID_HEADER",
    "PIN_HEADER",
    "RANK_HEADER",
    "REPLICA_HEADER",
    "REQUEST_ID_HEADER",
    "Headers",
    "ToEngine",
    "for_client",
    "for_engine",
]

Headers = list[tuple[str, str]]
"""Fields in order; a name may come twice."""

ToEngine = Callable[[Mapping[str, str]], Headers]
"""``for_engine`` under one router's rule for credentials."""

RANK_HEADER = "X-Data-Parallel-Rank"
REPLICA_HEADER = "X-KVSteer-Replica"
PIN_HEADER = "X-KVSteer-Pin-Replica"
"""Base URL of the one replica that a client wants its request to go to."""

REQUEST_ID_HEADER = "X-KVSteer-Request-Id"
CLIENT_ID_HEADER = "X-Request-Id"
"""A client's own name for its request: it travels on, and comes back."""

_HOP_BY_HOP = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
# The router speaks for itself here: it has read the whole body, and must be able to read the answer.
_READ_HERE = {"host", "content-length", "content-encoding", "expect", "accept-encoding", PIN_HEADER.lower()}
_REQUEST_OWN = _HOP_BY_HOP | _READ_HERE
_ANSWER_OWN = _HOP_BY_HOP | {"content-length", "date", "server"}
_FOR_THE_ROUTER = _REQUEST_OWN | {"authorization"}


def for_engine(headers: Mapping[str, str], *, authorization: bool) -> Headers:
    """A client's headers as an engine gets them. A body that says nothing of its type has been read as JSON here.

    ``authorization``: whether the client's credentials are meant for engines, not for the router or in its place.
    """
    kept = [
        *_without(headers.items(), _REQUEST_OWN if authorization else _FOR_THE_ROUTER),
        ("Accept-Encoding", "identity"),
    ]
    return kept if "Content-Type" in headers else [*kept, ("Content-Type", "application/json")]


def for_client(headers: Headers) -> Headers:
    """An engine's headers as the client gets them."""
    return _without(headers, _ANSWER_OWN)


def _without(fields: Iterable[tuple[str, str]], dropped: frozenset[str]) -> Headers:
    kept = [(name, value) for name, value in fields if name.lower() not in dropped]
    named = [value for name, value in fields if name.lower() == "connection"]
    if named:
        also = {name.strip().lower() for value in named for name in value.split(",")}
        kept = [(name, value) for name, value in kept if name.lower() not in also]
    return kept
