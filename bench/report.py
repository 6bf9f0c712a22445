"""From a run's books to the figures of the table. Pure arithmetic; a rate is always a sum over a sum."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

import msgspec

from bench.router_view import FleetView
from bench.tally import Tally

__all__ = ["PolicyReport", "ReplicaRow", "make_report", "quotient"]


class ReplicaRow(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the table: token sums over finished requests, TTFTs in seconds of those that were streamed."""

    name: str
    requests: int
    prompt_tokens: int
    predicted_hit: int
    reported_hit: int
    ttfts: tuple[float, ...]

    @property
    def predicted_rate(self) -> float | None:
        """Share of the prompt tokens that the router expected to find cached; None without any prompt."""
        return quotient(self.predicted_hit, self.prompt_tokens)

    @property
    def reported_rate(self) -> float | None:
        """Share of the prompt tokens that the engine says were cached."""
        return quotient(self.reported_hit, self.prompt_tokens)

    @property
    def ttft_p50(self) -> float | None:
        """Median time to first token, in seconds."""
        return median(self.ttfts) if self.ttfts else None


class PolicyReport(msgspec.Struct, frozen=True):
    """One policy's run."""

    policy: str
    rows: Sequence[ReplicaRow]

    @property
    def total(self) -> ReplicaRow:
        """All replicas together: sums of sums, and the median over all requests, not over medians."""
        return ReplicaRow(
            name="total",
            requests=sum(row.requests for row in self.rows),
            prompt_tokens=sum(row.prompt_tokens for row in self.rows),
            predicted_hit=sum(row.predicted_hit for row in self.rows),
            reported_hit=sum(row.reported_hit for row in self.rows),
            ttfts=tuple(ttft for row in self.rows for ttft in row.ttfts),
        )


def make_report(policy: str, fleet: FleetView, tally: Tally) -> PolicyReport:
    """Join the router's books (requests, tokens) with the client's clock (TTFT)."""
    rows = [
        ReplicaRow(
            name=replica.url,
            requests=replica.requests.routed,
            prompt_tokens=replica.tokens.prompt,
            predicted_hit=replica.tokens.predicted_hit,
            reported_hit=replica.tokens.reported_hit,
            ttfts=tuple(reply.ttft for reply in tally.of(replica.url) if reply.ttft is not None),
        )
        for replica in fleet.replicas
    ]
    return PolicyReport(policy, rows)


def quotient(value: float | None, base: float | None) -> float | None:
    """``value / base``, or None where one is missing or the base is 0."""
    return None if value is None or not base else value / base
