"""Attention over a cache that is sharded over the ranks of a DCP group.

Every rank stores the new tokens that it owns, attends with all new queries over what it owns of each sequence, and
leaves output and log-sum-exp, packed into one tensor, in one collective a layer, which all ranks of its group then
merge. The collective runs in every layer of every step; an empty shard only makes for weights of 0. Knows nothing of
weights or tokens, nor of other groups' heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from contract.geometry import Geometry
from engine.cache.pools import KVPool, Shard
from engine.kernels.extend_attention import extend_attention
from engine.kernels.lse_merge import merge
from engine.kernels.paged_decode import paged_decode
from engine.model.step import DecodePart, ExtendPart, Step
from engine.parallel.group import Group

__all__ = ["Attention", "Placement"]


@dataclass(frozen=True)
class Placement:
    """What a step means to one rank: which of its new tokens to store where, and what each query sees here."""

    slots: Tensor  # [T], pool row of each token that this rank stores, NOT_HERE for the others
    visible: Tensor  # [T], own tokens that each query sees


class Attention:
    """One rank's attention with the heads of its DCP group, which is ``group``."""

    def __init__(self, *, pool: KVPool, geometry: Geometry, group: Group, device: torch.device) -> None:
        assert group.size == geometry.dcp_size, f"a group of {group.size} ranks, dcp_size is {geometry.dcp_size}"
        self._pool = pool
        self._geometry = geometry
        self._group = group
        self._shard = Shard(geometry, dcp_rank=group.rank, device=device)

    def place(self, step: Step) -> Placement:
        """Work out, once a step, what all layers need."""
        slots = self._shard.slots(step.positions, step.blocks)
        return Placement(slots=slots, visible=self._shard.visible(step.positions))

    def forward(
        self, layer: int, *, queries: Tensor, keys: Tensor, values: Tensor, step: Step, placement: Placement
    ) -> Tensor:
        """Store and attend.

        Args:
            layer: index of the layer.
            queries: ``[T, own heads, head_dim]``.
            keys: ``[T, own KV heads, head_dim]``.
            values: as ``keys``.
            step: the step.
            placement: what ``place`` made of it.

        Returns:
            ``[T, own heads, head_dim]``, the same on all ranks of the group.
        """
        self._pool.store(layer, slots=placement.slots, keys=keys, values=values)
        partial = [self._attend(layer, queries, part, placement) for part in step.parts]
        if self._group.size == 1:
            return _joined([output for output, _ in partial])
        packed = _joined([torch.cat([output, lse.unsqueeze(-1)], dim=-1) for output, lse in partial])
        gathered = self._group.all_gather(packed)  # [dcp, T, own heads, head_dim + 1]
        return merge(gathered[..., :-1], gathered[..., -1])[0]

    def _attend(
        self, layer: int, queries: Tensor, part: DecodePart | ExtendPart, placement: Placement
    ) -> tuple[Tensor, Tensor]:
        """Output ``[rows, own heads, head_dim]`` and LSE ``[rows, own heads]`` of one part over this rank's shard."""
        rows = slice(part.start, part.stop)
        keys, values = self._pool.pages(layer)
        visible = placement.visible[rows]
        if isinstance(part, DecodePart):
            return paged_decode(queries[rows], keys, values, part.tables, visible)
        longest = self._geometry.local_length(part.length, rank=self._group.rank)
        return extend_attention(queries[rows], keys, values, part.table, visible, longest=longest)


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))
