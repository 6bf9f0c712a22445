"""The two halves of a decoder layer, as one rank computes them.

Each takes the hidden states and gives this rank's part of what is to be added to them: the sum over all ranks is the
whole. Knows nothing of how that sum is made.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from torch import Tensor

from engine.model.attention import Attention, Placement
from engine.model.config import ModelConfig
from engine.model.linear import Linear
from engine.model.rope import Rope
from engine.model.step import Step
from engine.model.weights import AttentionWeights, MlpWeights
from engine.parallel.layout import WeightShard

__all__ = ["AttentionLayer", "MlpLayer", "Pass", "norm"]

_CACHED_ROWS = 256
"""Rows whose inner features a CPU still has in its caches when it comes to use them."""


@dataclass(frozen=True)
class Pass:
    """What all layers of one step share on one rank."""

    step: Step
    placement: Placement
    rotation: tuple[Tensor, Tensor]


class AttentionLayer:
    """Norm, heads of this rank's group, and this rank's columns of the output projection."""

    def __init__(
        self,
        index: int,
        *,
        model: ModelConfig,
        shard: WeightShard,
        weights: AttentionWeights,
        attention: Attention,
        rope: Rope,
        first_rank: bool,
    ) -> None:
        self._index = index
        self._model = model
        self._heads = shard.heads
        self._columns = slice(shard.out_columns.start, shard.out_columns.stop)
        self._norm = weights.attention_norm
        self._qkv = Linear(weights.qkv, weights.qkv_bias)
        self._query_norm, self._key_norm = weights.query_norm, weights.key_norm
        self._out = Linear(weights.out, weights.out_bias if first_rank else None)  # the ranks' sum has it once
        self._attention = attention
        self._rope = rope

    def __call__(self, hidden: Tensor, now: Pass) -> Tensor:
        """This rank's part of ``[T, hidden]``."""
        return self.of_normed(norm(hidden, self._norm, self._model), now)

    def of_normed(self, normed: Tensor, now: Pass) -> Tensor:
        """Likewise where the norm is done: of ``[T, hidden]`` normed states."""
        heads, kv_heads = self._heads.num_heads, self._heads.num_kv_heads
        qkv = self._qkv(normed)
        qkv = qkv.view(len(qkv), -1, self._model.head_dim)
        turned = self._rope.rotate(self._normed(qkv[:, : heads + kv_heads]), now.rotation)
        attended = self._attention.forward(
            self._index,
            queries=turned[:, :heads],
            keys=turned[:, heads:],
            values=qkv[:, heads + kv_heads :],
            step=now.step,
            placement=now.placement,
        )
        return self._out(attended.flatten(1)[:, self._columns].to(normed.dtype))

    def _normed(self, states: Tensor) -> Tensor:
        """Queries and keys ``[T, heads + kv_heads, head_dim]``, normed head by head where the model does that."""
        if self._query_norm is None or self._key_norm is None:
            return states
        heads = self._heads.num_heads
        queries = norm(states[:, :heads], self._query_norm, self._model)
        keys = norm(states[:, heads:], self._key_norm, self._model)
        return torch.cat([queries, keys], dim=1)


class MlpLayer:
    """Norm, and this rank's features of a SwiGLU."""

    def __init__(self, *, model: ModelConfig, weights: MlpWeights) -> None:
        self._model = model
        self._norm = weights.mlp_norm
        self._gate_up = Linear(weights.gate_up)
        self._down = Linear(weights.down)

    def __call__(self, hidden: Tensor) -> Tensor:
        """This rank's part of ``[T, hidden]``."""
        if hidden.device.type != "cpu" or len(hidden) <= _CACHED_ROWS:
            return self._part(hidden)
        return torch.cat([self._part(rows) for rows in torch.split(hidden, _CACHED_ROWS)])

    def _part(self, hidden: Tensor) -> Tensor:
        gate, up = self._gate_up(norm(hidden, self._norm, self._model)).chunk(2, dim=-1)
        return self._down(F.silu(gate).mul_(up))


def norm(states: Tensor, weight: Tensor, model: ModelConfig) -> Tensor:
    """RMSNorm over the last dimension."""
    return F.rms_norm(states, weight.shape, weight, model.rms_eps)
