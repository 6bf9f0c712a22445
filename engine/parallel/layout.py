"""How a world of ranks is laid out: DCP groups, and the attention heads each group computes.

Knows nothing of torch, threads or processes, so wrong combinations are refused before any of them starts.
"""

from __future__ import annotations

import msgspec

from engine.model.config import ModelConfig

__all__ = ["HeadShard", "Layout", "LayoutError", "WeightShard"]

_MAX_RANKS = 1024
"""Far above any world of one model; seats for all ranks are made before the first of them fails to start."""


class LayoutError(ValueError):
    """A world that cannot be laid out; the message is one line that names the numbers."""


class HeadShard(msgspec.Struct, frozen=True, kw_only=True):
    """The attention heads of one DCP group: ``[first, first + count)`` of the query heads, likewise of the KV heads."""

    first_head: int
    num_heads: int
    first_kv_head: int
    num_kv_heads: int


class WeightShard(msgspec.Struct, frozen=True, kw_only=True):
    """What of every layer's weights one rank holds; ranges are half-open.

    The projection after attention is cut by columns, of which each head gives ``head_dim``: a rank takes
    ``out_columns`` of its own group's heads, since every rank of a group has the whole attention of those. The MLP is
    cut by ``intermediate`` features, over all ranks, and the output projection by ``vocabulary`` rows.
    """

    heads: HeadShard
    out_columns: range
    intermediate: range
    vocabulary: range


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """``tp_size`` ranks in contiguous groups of ``dcp_size``.

    Ranks of one group hold the same heads, and 1/``dcp_size`` of the tokens each; groups share out the heads. Rank
    ``r`` is rank ``r % dcp_size`` of group ``r // dcp_size`` (SGLang 0.5.23's and vLLM 0.33.0's order).

    Raises:
        LayoutError: a size below 1, more ranks than anybody has, or groups that do not fill the world.
    """

    tp_size: int = 1
    dcp_size: int = 1

    def __post_init__(self) -> None:
        for name in ("tp_size", "dcp_size"):
            if getattr(self, name) < 1:
                raise LayoutError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.tp_size > _MAX_RANKS:
            raise LayoutError(f"tp_size must be at most {_MAX_RANKS}, got {self.tp_size}")
        if self.tp_size % self.dcp_size:
            raise LayoutError(f"tp_size {self.tp_size} is not a multiple of dcp_size {self.dcp_size}")

    @property
    def num_groups(self) -> int:
        """DCP groups in the world."""
        return self.tp_size // self.dcp_size

    def group(self, rank: int) -> int:
        """DCP group that ``rank`` belongs to."""
        return rank // self.dcp_size

    def dcp_rank(self, rank: int) -> int:
        """Place of ``rank`` in its DCP group."""
        return rank % self.dcp_size

    def heads(self, model: ModelConfig, *, group: int) -> HeadShard:
        """Heads that ``group`` computes. With more groups than KV heads, several groups hold the same KV head.

        Raises:
            LayoutError: the heads do not divide evenly.
        """
        groups = self.num_groups
        if model.num_heads % groups:
            raise LayoutError(f"{model.num_heads} attention heads do not divide over {self._groups_in_words}")
        if model.num_kv_heads % groups and groups % model.num_kv_heads:
            raise LayoutError(f"{model.num_kv_heads} KV heads do not divide over {self._groups_in_words}")
        return HeadShard(
            first_head=group * model.num_heads // groups,
            num_heads=model.num_heads // groups,
            first_kv_head=group * model.num_kv_heads // groups,
            num_kv_heads=max(1, model.num_kv_heads // groups),
        )

    def weights(self, model: ModelConfig, *, rank: int) -> WeightShard:
        """What ``rank`` holds of each layer. Shares differ by one column or feature where they do not divide.

        Raises:
            LayoutError: the heads do not divide evenly.
        """
        heads = self.heads(model, group=self.group(rank))
        columns = heads.num_heads * model.head_dim
        return WeightShard(
            heads=heads,
            out_columns=_share(columns, part=self.dcp_rank(rank), parts=self.dcp_size),
            intermediate=self.features(model.intermediate_size, rank=rank),
            vocabulary=self._rows(model.vocab_size, rank=rank),
        )

    def features(self, total: int, *, rank: int) -> range:
        """``rank``'s share of ``total`` features that are cut over all ranks; shares differ by one at most."""
        return _share(total, part=rank, parts=self.tp_size)

    def _rows(self, total: int, *, rank: int) -> range:
        """``rank``'s share of rows whose products are put side by side again: all are as long but the last ones."""
        share = -(-total // self.tp_size)
        return range(min(rank * share, total), min((rank + 1) * share, total))

    @property
    def _groups_in_words(self) -> str:
        return f"{self.num_groups} groups of ranks (tp_size {self.tp_size} / dcp_size {self.dcp_size})"


def _share(total: int, *, part: int, parts: int) -> range:
    return range(total * part // parts, total * (part + 1) // parts)
