"""What a run behind one router came to, as figures. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

import msgspec

from bench.e2e.engines import Books
from bench.figures import Figure, figure

__all__ = ["BENCH", "Outcome", "figures"]

BENCH = "e2e"


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """One run. ``ttfts`` in seconds, of the requests that were answered; ``books`` are the engines', a replica each.

    ``late_seconds``: by how much a request left after its time at worst, which says whether the machine kept up.
    """

    ttfts: Sequence[float]
    failed: int
    books: Sequence[Books]
    late_seconds: float

    @property
    def hit_tokens(self) -> int:
        """Prompt tokens that the engines say they found cached."""
        return sum(one.cached_tokens for one in self.books)

    @property
    def hit_rate(self) -> float:
        """Their share of the prompt tokens."""
        return self.hit_tokens / sum(one.prompt_tokens for one in self.books)

    @property
    def imbalance(self) -> float:
        """What the busiest replica prefilled over what each did in the mean: 1 is even."""
        prefilled = [one.prefilled_tokens for one in self.books]
        return max(prefilled) / statistics.mean(prefilled)

    def ttft(self, percent: int) -> float:
        """A percentile, in milliseconds."""
        return 1e3 * statistics.quantiles(self.ttfts, n=100, method="inclusive")[percent - 1]


def figures(case: str, subject: str, runs: Sequence[Outcome]) -> Iterator[Figure]:
    """All figures of one router."""
    yield figure(BENCH, case, subject, "hit rate", [run.hit_rate for run in runs], unit="share")
    yield figure(BENCH, case, subject, "hit tokens", [run.hit_tokens for run in runs], unit="tok")
    for percent in (50, 90):
        yield figure(BENCH, case, subject, f"TTFT p{percent}", [run.ttft(percent) for run in runs], unit="ms")
    yield figure(BENCH, case, subject, "TTFT mean", [1e3 * statistics.mean(run.ttfts) for run in runs], unit="ms")
    yield figure(BENCH, case, subject, "busiest / mean", [run.imbalance for run in runs], unit="ratio")
    yield figure(BENCH, case, subject, "latest start", [1e3 * run.late_seconds for run in runs], unit="ms")
    yield figure(BENCH, case, subject, "failed", [run.failed for run in runs], unit="req")
