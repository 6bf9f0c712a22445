"""The real index and prompt over blocks instead of tokens.

A workload tells content by one id a block, so here a block is one id wide, on the wire and in the index. Everybody
else counts in tokens: widths that are asked for and matches that are answered are the workload's.
"""

from __future__ import annotations

from msgspec import structs

from bench.fleet.engine import findable
from bench.workloads.request import Ask
from router.intake.index import EVERYONE, BlockIndex, Holding, LaneHandle, LaneLimits
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
    """Answers in tokens, of which each block stands for ``block_tokens``.

    Of each lane no more removed blocks are remembered than a cache has: a thousand lanes' would be gigabytes.
    """

    def __init__(self, *, block_tokens: int, cache_blocks: int) -> None:
        usual = LaneLimits()
        super().__init__(limits=structs.replace(usual, departed=min(usual.departed, cache_blocks)))
        self.block_tokens = block_tokens

    def holdings(self, prompt: Prompt, *, asked: int = EVERYONE) -> list[Holding]:
        """See `BlockIndex`."""
        return [
            Holding(found.lanes, tokens=found.blocks * self.block_tokens, blocks=found.blocks, keys=found.keys)
            for found in super().holdings(prompt, asked=asked)
        ]

    def gpu_tokens(self, handle: LaneHandle) -> int:
        """See `BlockIndex`."""
        return super().gpu_tokens(handle) * self.block_tokens
