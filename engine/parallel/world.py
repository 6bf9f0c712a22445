"""How a world of ranks ends. Knows nothing of torch, threads or processes."""

from __future__ import annotations

__all__ = ["CollectiveError", "RankFailedError"]


class RankFailedError(RuntimeError):
    """A rank is lost, and with it the whole world; one line that names the rank. The cause is chained where known."""


class CollectiveError(RuntimeError):
    """On a rank: a collective in which not all ranks took part. Somebody else is at fault."""
