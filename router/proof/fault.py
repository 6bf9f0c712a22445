"""What a fault is: a code whose meaning never changes, the numbers that prove it, and what to do. Values only."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence

import msgspec

__all__ = ["Code", "Fault", "Sighting"]


class Code(enum.StrEnum):
    """Every diagnosis there is. ``blinding`` says which of them leave a replica without hits."""

    WIDTH_MISMATCH = "width-mismatch"
    EVENTS_SILENT = "events-silent"
    STREAM_LOST = "stream-lost"
    STREAM_UNTRUSTED = "stream-untrusted"
    TOKENIZATION_MISMATCH = "tokenization-mismatch"
    SALT_OR_ADAPTER_MISMATCH = "salt-or-adapter-mismatch"
    REPORTS_MISSING = "reports-missing"
    HITS_NOT_REALISED = "hits-not-realised"
    HITS_NOT_PREDICTED = "hits-not-predicted"
    PROMPTS_SHORTER_THAN_BLOCK = "prompts-shorter-than-block"
    AGREEMENT_MISSING = "agreement-missing"

    @property
    def blinding(self) -> bool:
        """Whether a router that takes the replica at its word finds none of its hits, and nothing fails."""
        return self not in _PARTIAL


_PARTIAL = frozenset({Code.STREAM_LOST, Code.STREAM_UNTRUSTED, Code.REPORTS_MISSING, Code.PROMPTS_SHORTER_THAN_BLOCK})

Proof = int | float | str | None | Sequence[int]


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """Something wrong with a lane, or with a whole replica where ``dp_rank`` is None.

    ``detail`` and ``advice`` are sentences for people; ``evidence`` has the numbers by name.
    """

    code: Code
    detail: str
    advice: str
    dp_rank: int | None
    evidence: Mapping[str, Proof]


class Sighting(Fault, frozen=True, kw_only=True):
    """A fault that holds now: when it appeared, and when it was last found to hold, in seconds since the epoch."""

    first_seen: float
    last_seen: float
