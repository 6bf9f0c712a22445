"""Block geometry under decode context parallelism (DCP).

An engine that shards one sequence's KV cache over ``dcp_size`` ranks stores ``page_size`` tokens of every block on each
rank, so one logical block stands for ``page_size * dcp_size`` tokens: the *block width*. That product is written in
this module and nowhere else; a test enforces it.

The token-to-rank arithmetic is vLLM's (0.33.0, ``cp_kv_cache_interleave_size``); with ``interleave=1`` it is also
SGLang's (0.5.23: widened slot ``s`` belongs to rank ``s % dcp_size``). This module knows nothing of tensors, pools or
wires.
"""

from __future__ import annotations

import msgspec

__all__ = ["Geometry", "GeometryError", "block_width"]


class GeometryError(ValueError):
    """A combination of sizes that no engine can lay out."""


def block_width(*, page_size: int, dcp_size: int) -> int:
    """Tokens one logical block stands for; the width at which KV events leave the engine."""
    return page_size * dcp_size


class Geometry(msgspec.Struct, frozen=True, kw_only=True):
    """How the tokens of one sequence are spread over the ranks of a DCP group.

    ``page_size`` tokens of each block live on each of ``dcp_size`` ranks, dealt out in runs of ``interleave`` tokens.

    Raises:
        GeometryError: a size below 1, or a page that whole runs of ``interleave`` tokens do not fill.
    """

    page_size: int
    dcp_size: int = 1
    interleave: int = 1

    def __post_init__(self) -> None:
        for name in ("page_size", "dcp_size", "interleave"):
            if getattr(self, name) < 1:
                raise GeometryError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.page_size % self.interleave:
            raise GeometryError(f"page_size {self.page_size} is not a multiple of the DCP interleave {self.interleave}")

    @property
    def block_width(self) -> int:
        """Tokens per logical block."""
        return block_width(page_size=self.page_size, dcp_size=self.dcp_size)

    @property
    def _round(self) -> int:
        """Tokens dealt out before the first rank is served again."""
        return self.interleave * self.dcp_size

    def block_index(self, position: int) -> int:
        """Column of the block table that holds the token at ``position``."""
        return position // self.block_width

    def owner(self, position: int) -> int:
        """DCP rank that stores the token at ``position``."""
        return position % self.block_width // self.interleave % self.dcp_size

    def local_offset(self, position: int) -> int:
        """Row of the token at ``position`` inside its owner's page, in ``[0, page_size)``."""
        offset = position % self.block_width
        return offset // self._round * self.interleave + offset % self.interleave

    def local_length(self, length: int, *, rank: int) -> int:
        """Tokens of a sequence of ``length`` that ``rank`` stores; 0 is an ordinary answer for a short sequence."""
        full_rounds, rest = divmod(length, self._round)
        own_share_of_rest = min(max(rest - rank * self.interleave, 0), self.interleave)
        return full_rounds * self.interleave + own_share_of_rest

    def full_blocks(self, length: int) -> int:
        """Whole blocks in ``length`` tokens; only whole blocks are cached, announced and hashed."""
        return length // self.block_width

    def blocks_for(self, length: int) -> int:
        """Blocks needed to store ``length`` tokens."""
        return -(-length // self.block_width)
