"""Our rule with one term of its cost left out: what the term is worth is the difference."""

from __future__ import annotations

from router.choice.candidate import Candidate
from router.choice.kv_cost import TERMS, KvAware, Prices

__all__ = ["ABLATED", "Without"]

ABLATED = ("behind", "work", "room", "spread", "running")
"""Terms that a simulated fleet without tiers, decodes and sessions of its own has."""


class Without(KvAware):
    """``term`` costs nothing."""

    def __init__(self, term: str) -> None:
        self._place = TERMS.index(term)

    def terms(self, lane: Candidate, prices: Prices) -> tuple[float, ...]:
        """See `KvAware`."""
        terms = super().terms(lane, prices)
        return (*terms[: self._place], 0.0, *terms[self._place + 1 :])
