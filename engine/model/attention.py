"""Attention over a cache that is sharded over the ranks of a DCP group.

Every rank stores the new tokens that it owns, attends with all new queries over what it owns of each sequence, and
leaves output and log-sum-exp, packed into one tensor, in one collective a layer. What comes back is merged within each
DCP group, and the groups' heads are put side by side, so every rank ends with the whole attention. The collective runs
in every layer of every step; an empty shard only makes for weights of 0. Knows nothing of weights or tokens.
"""

from __future__ import annotations

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
from engine.parallel.layout import Layout

__all__ = ["Attention", "Placement"]


@dataclass(frozen=True)
class Placement:
    """What a step means to one rank: which of its new tokens to store where, and what each query sees here."""

    own: Tensor  # rows of the step that this rank stores
    slots: Tensor  # pool row of each
    visible: Tensor  # [T], own tokens that each query sees


class Attention:
    """One rank's attention; ``group`` is the whole world of ``layout``."""

    def __init__(self, *, pool: KVPool, geometry: Geometry, layout: Layout, group: Group, device: torch.device) -> None:
        self._pool = pool
        self._geometry = geometry
        self._layout = layout
        self._group = group
        self._dcp_rank = layout.dcp_rank(group.rank)
        self._shard = Shard(geometry, dcp_rank=self._dcp_rank, device=device)

    def place(self, step: Step) -> Placement:
        """Work out, once a step, what all layers need."""
        own, slots = self._shard.slots(step.positions, step.blocks)
        return Placement(own=own, slots=slots, visible=self._shard.visible(step.positions))

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
            ``[T, all heads, head_dim]``.
        """
        keys, values = keys.index_select(0, placement.own), values.index_select(0, placement.own)
        self._pool.store(layer, slots=placement.slots, keys=keys, values=values)
        partial = [self._attend(layer, queries, part, placement) for part in step.parts]
        return self._combine(self._group.all_gather(torch.cat(partial)))

    def _attend(self, layer: int, queries: Tensor, part: DecodePart | ExtendPart, placement: Placement) -> Tensor:
        """Output and LSE of one part over this rank's shard, packed: ``[rows, own heads, head_dim + 1]``."""
        rows = slice(part.start, part.stop)
        keys, values = self._pool.pages(layer)
        visible = placement.visible[rows]
        if isinstance(part, DecodePart):
            output, lse = paged_decode(queries[rows], keys, values, part.tables, visible)
        else:
            longest = self._geometry.local_length(part.length, rank=self._dcp_rank)
            output, lse = extend_attention(queries[rows], keys, values, part.table, visible, longest=longest)
        return torch.cat([output, lse.unsqueeze(-1)], dim=-1)

    def _combine(self, gathered: Tensor) -> Tensor:
        """Merge ``[world, T, own heads, head_dim + 1]`` over each DCP group; heads of the groups side by side."""
        groups = gathered.view(self._layout.num_groups, self._layout.dcp_size, *gathered.shape[1:])
        packed = groups.permute(1, 2, 0, 3, 4).flatten(2, 3)  # [dcp, T, all heads, head_dim + 1]
        outputs, lses = packed[..., :-1], packed[..., -1]
        if self._layout.dcp_size == 1:
            return outputs[0]
        return merge(outputs, lses)[0]
