"""A Llama-shaped decoder, as every rank runs it: same step, same code, its own heads and its own shard of the cache.

Attention is shared out over the ranks; the rest is computed by each of them. Knows nothing of requests or sampling.
"""

from __future__ import annotations

import torch.nn.functional as F  # noqa: N812 - its usual name
from torch import Tensor

from engine.model.attention import Attention, Placement
from engine.model.config import ModelConfig
from engine.model.rope import Rope
from engine.model.step import Step
from engine.model.weights import LayerWeights, Weights
from engine.parallel.layout import HeadShard

__all__ = ["Llama"]


class Llama:
    """One rank's model."""

    def __init__(self, *, model: ModelConfig, heads: HeadShard, weights: Weights, attention: Attention) -> None:
        self._model = model
        self._heads = heads
        self._weights = weights
        self._attention = attention
        self._rope = Rope(model, device=weights.embedding.device)

    def forward(self, step: Step) -> Tensor:
        """Run all layers, storing keys and values; the final states ``[samples, hidden]`` of the sampled rows."""
        placement = self._attention.place(step)
        rotation = self._rope.at(step.positions)
        hidden = F.embedding(step.tokens, self._weights.embedding)  # [T, hidden]
        for index, layer in enumerate(self._weights.layers):
            hidden = hidden + self._attend(index, layer, hidden, rotation, step, placement)
            hidden = hidden + self._mlp(layer, hidden)
        return self._norm(hidden[step.sampled], self._weights.final_norm)

    def logits(self, states: Tensor) -> Tensor:
        """``[samples, vocab]`` of final states."""
        return F.linear(states, self._weights.embedding)

    def _attend(
        self,
        index: int,
        layer: LayerWeights,
        hidden: Tensor,
        rotation: tuple[Tensor, Tensor],
        step: Step,
        placement: Placement,
    ) -> Tensor:
        heads, kv_heads = self._heads.num_heads, self._heads.num_kv_heads
        qkv = F.linear(self._norm(hidden, layer.attention_norm), layer.qkv)
        qkv = qkv.view(len(qkv), -1, self._model.head_dim)
        rotated = self._rope.rotate(qkv[:, : heads + kv_heads], rotation)
        attended = self._attention.forward(
            index,
            queries=rotated[:, :heads],
            keys=rotated[:, heads:],
            values=qkv[:, heads + kv_heads :],
            step=step,
            placement=placement,
        )
        return F.linear(attended.flatten(1), layer.out)

    def _mlp(self, layer: LayerWeights, hidden: Tensor) -> Tensor:
        gate, up = F.linear(self._norm(hidden, layer.mlp_norm), layer.gate_up).chunk(2, dim=-1)
        return F.linear(F.silu(gate) * up, layer.down)

    def _norm(self, hidden: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(hidden, weight.shape, weight, self._model.rms_eps)
