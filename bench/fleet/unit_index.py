"""The real index and prompt over blocks instead of tokens.

A workload tells content by one id a block, so here a block is one id wide, on the wire and in the index. Everybody
else counts in tokens: widths that are asked for and matches that are answered are the workload's.
"""

from __future__ import annotations

from collections.abc import Iterable

from bench.fleet.engine import findable
from bench.workloads.request import Ask
from router.intake.index import BlockIndex, LaneHandle, Match
from router.prompt import BlockKeys, Prompt

__all__ = ["BlockPrompt", "UnitIndex"]


class BlockPrompt(Prompt):
    """A request's findable blocks, which have the same keys at whatever width they are said to be."""

    def __init__(self, ask: Ask, *, block_tokens: int) -> None:
        super().__init__(ask.blocks[: findable(ask, block_tokens)])

    def keys(self, *, width: int, pairs: bool = False) -> BlockKeys:
        """See `Prompt`."""
        return super().keys(width=1, pairs=pairs)


class UnitIndex(BlockIndex):
    """Answers in tokens, of which each block stands for ``block_tokens``."""

    def __init__(self, *, block_tokens: int) -> None:
        super().__init__()
        self.block_tokens = block_tokens

    def match(self, prompt: Prompt, lanes: Iterable[LaneHandle]) -> dict[LaneHandle, Match]:
        """See `BlockIndex`."""
        return {lane: self._in_tokens(match) for lane, match in super().match(prompt, lanes).items()}

    def holders(self, prompt: Prompt) -> dict[LaneHandle, Match]:
        """See `BlockIndex`."""
        return {lane: self._in_tokens(match) for lane, match in super().holders(prompt).items()}

    def gpu_tokens(self, handle: LaneHandle) -> int:
        """See `BlockIndex`."""
        return super().gpu_tokens(handle) * self.block_tokens

    def _in_tokens(self, match: Match) -> Match:
        if not match.tokens:
            return match
        step = self.block_tokens
        return Match(match.tokens * step, {tier: units * step for tier, units in match.tiers.items()})
