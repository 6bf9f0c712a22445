"""The replicas that one model's requests may be sent to, and what a request needs to know of all of them together.

Kept up as replicas come and go, so that a request need not ask each of a thousand.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from router.choice.local_tokenizers import TokenizerSource
from router.choice.pool import Pool
from router.fleet.lane import Lane
from router.fleet.replica import Replica

__all__ = ["Served"]


class _Sums(msgspec.Struct, frozen=True):
    vocabulary: int | None
    tokenizers: Sequence[TokenizerSource]


class Served:
    """``kept``: for more than one request, by somebody who closes it."""

    def __init__(self, replicas: Iterable[Replica], *, kept: bool) -> None:
        self._kept = kept
        self._pool: Pool[Lane] = Pool()
        self._lanes_of: dict[Replica, tuple[Lane, ...]] = {}
        self._summed: _Sums | None = None
        for replica in replicas:
            self.put(replica)

    def __bool__(self) -> bool:
        return bool(self._lanes_of)

    def __contains__(self, replica: Replica) -> bool:
        return replica in self._lanes_of

    @property
    def lanes(self) -> Sequence[Lane]:
        """Those of the replicas, each as it was when it was last put in; a pool where it pays to keep them in order."""
        return self._pool if self._kept else self._pool.members

    def close(self) -> None:
        """Nobody asks any more."""
        self._pool.close()

    @property
    def first(self) -> Replica:
        """One of the replicas, where there are any."""
        return next(iter(self._lanes_of))

    def put(self, replica: Replica) -> None:
        """Take a replica in, or its lanes as they are now."""
        lanes = tuple(replica.lanes)
        for lane in self._lanes_of.get(replica, ()):
            if lane not in lanes:
                self._pool.discard(lane)
        self._pool.add(*lanes)
        self._lanes_of[replica] = lanes
        self._summed = None

    def drop(self, replica: Replica) -> None:
        """Let a replica go, if it is here."""
        if replica in self._lanes_of:
            for lane in self._lanes_of.pop(replica):
                self._pool.discard(lane)
            self._summed = None

    @property
    def vocabulary(self) -> int | None:
        """Token ids that some engine has are below this; None where not all of them say how many they have."""
        return self._sums().vocabulary

    @property
    def tokenizers(self) -> Sequence[TokenizerSource]:
        """Where each of them has its tokenizer."""
        return self._sums().tokenizers

    def _sums(self) -> _Sums:
        if self._summed is None:
            known = [(replica.url, replica.identity) for replica in self._lanes_of if replica.identity is not None]
            sizes = [identity.vocab_size for _, identity in known if identity.vocab_size is not None]
            self._summed = _Sums(
                max(sizes) if sizes and len(sizes) == len(known) else None,
                [TokenizerSource(url, identity.tokenizer) for url, identity in known],
            )
        return self._summed
