"""What look-ups in the index answer: how much of a prompt is held, by whom, and where."""

from __future__ import annotations

import msgspec

from contract.events import Tier
from router.intake.lane import LaneBlocks
from router.prompt import BlockKeys

__all__ = ["NO_MATCH", "Holding", "Match"]

_GPU = Tier.GPU.value


class Match(msgspec.Struct, frozen=True):
    """How much of a prompt a lane holds, from its first token on without a hole.

    ``tiers`` splits ``tokens`` by the fastest tier that each block is in.
    """

    tokens: int
    tiers: dict[str, int]


NO_MATCH = Match(tokens=0, tiers={})


class Holding:
    """Lanes that hold as much of a prompt: ``tokens`` each, the first ``blocks`` of ``keys``.

    ``lanes`` is a mask of the index's bits; ``on_gpu`` what those of them hold that keep everything there.
    """

    __slots__ = ("blocks", "keys", "lanes", "on_gpu", "tokens")

    def __init__(self, lanes: int, *, tokens: int, blocks: int, keys: BlockKeys) -> None:
        self.lanes = lanes
        self.tokens = tokens
        self.blocks = blocks
        self.keys = keys
        self.on_gpu = Match(tokens, {_GPU: tokens})

    def of(self, lane: LaneBlocks) -> Match:
        """One of its lanes, with its own tiers."""
        if lane.claims.all_on_gpu:
            return self.on_gpu
        block_tokens = self.tokens // self.blocks
        tiers = lane.claims.tiers(self.keys, self.blocks)
        return Match(self.tokens, {tier: count * block_tokens for tier, count in tiers.items()})
