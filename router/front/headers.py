"""Which header fields travel on, and which belong to one connection only (RFC 9110, section 7.6.1)."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["RANK_HEADER", "REPLICA_HEADER", "Headers", "for_client", "for_engine"]

Headers = list[tuple[str, str]]
"""Fields in order; a name may come twice."""

RANK_HEADER = "X-Data-Parallel-Rank"
REPLICA_HEADER = "X-KVSteer-Replica"

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
_REQUEST_OWN = _HOP_BY_HOP | {"host", "content-length", "content-encoding", "expect", "accept-encoding"}
_ANSWER_OWN = _HOP_BY_HOP | {"content-length", "date", "server"}


def for_engine(headers: Mapping[str, str]) -> Headers:
    """A client's headers as an engine gets them. A body that says nothing of its type has been read as JSON here."""
    kept = [*_without(headers, _REQUEST_OWN), ("Accept-Encoding", "identity")]
    return kept if "Content-Type" in headers else [*kept, ("Content-Type", "application/json")]


def for_client(headers: Mapping[str, str]) -> Headers:
    """An engine's headers as the client gets them."""
    return _without(headers, _ANSWER_OWN)


def _without(headers: Mapping[str, str], dropped: frozenset[str]) -> Headers:
    named = headers.get("Connection")
    if named:
        dropped = dropped | {name.strip().lower() for name in named.split(",")}
    return [(name, value) for name, value in headers.items() if name.lower() not in dropped]
