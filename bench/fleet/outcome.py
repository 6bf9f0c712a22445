"""What became of the requests of one run: sums as they end, and the figures made of them. Tokens are prompt tokens."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Sequence
from functools import cached_property

import msgspec

from bench.workloads.request import Ask

__all__ = ["Hits", "Outcome", "quantile"]


class Hits(msgspec.Struct):
    """Prompt tokens and blocks, and how many of them were found. A block that is not full counts, and is not found."""

    block_tokens: int
    tokens: int = 0
    cached_tokens: int = 0
    blocks: int = 0
    cached_blocks: int = 0

    def add(self, ask: Ask, *, cached_tokens: int) -> None:
        """One more prompt."""
        self.tokens += ask.tokens
        self.cached_tokens += cached_tokens
        self.blocks += -(-ask.tokens // self.block_tokens)
        self.cached_blocks += cached_tokens // self.block_tokens

    @property
    def token_rate(self) -> float:
        """Share of the tokens that were found."""
        return self.cached_tokens / self.tokens if self.tokens else 0.0

    @property
    def block_rate(self) -> float:
        """Share of the blocks that were found."""
        return self.cached_blocks / self.blocks if self.blocks else 0.0


class Outcome:
    """One policy's run. ``uncached`` has each replica's computed tokens, ``ttfts`` the seconds to each first token."""

    def __init__(self, *, replicas: int, block_tokens: int) -> None:
        self.hits = Hits(block_tokens)
        self.predicted_tokens = 0
        self.uncached = [0] * replicas
        self.ttfts = array("d")
        self.choices = 0
        self.choice_ns = 0
        self.broken_off = 0
        self.cpu_seconds = 0.0

    def chosen(self, *, nanoseconds: int) -> None:
        """A replica was chosen, which took so long in fact."""
        self.choices += 1
        self.choice_ns += nanoseconds

    def prefilled(self, ask: Ask, *, replica: int, cached_tokens: int, predicted_tokens: int, seconds: float) -> None:
        """A prompt was computed, ``seconds`` after it came."""
        self.hits.add(ask, cached_tokens=cached_tokens)
        self.predicted_tokens += predicted_tokens
        self.uncached[replica] += ask.tokens - cached_tokens
        self.ttfts.append(seconds)

    @property
    def requests(self) -> int:
        """Prompts computed."""
        return len(self.ttfts)

    @property
    def imbalance(self) -> float:
        """Computed tokens of the replica that had most, by the mean's."""
        return max(self.uncached) * len(self.uncached) / sum(self.uncached)

    @property
    def ttft_mean(self) -> float:
        """Seconds to the first token."""
        return sum(self.ttfts) / len(self.ttfts)

    @cached_property
    def ordered_ttfts(self) -> Sequence[float]:
        """All times to first token, the shortest first; asked for when the run is over."""
        return sorted(self.ttfts)


def quantile(ordered: Sequence[float], share: float) -> float:
    """The least value that ``share`` of them do not pass."""
    place = bisect_left(range(1, len(ordered)), share * len(ordered) - 1e-9)
    return ordered[place]
