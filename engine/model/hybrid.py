"""A decoder with full attention in some layers and linear attention in the others, as every rank runs it.

Full attention shares tokens out over the ranks of a DCP group; linear attention keeps its states whole on every rank.
Differs from `Llama` in what is carried on: the normed states, not what the norm was taken of. Knows nothing of
requests or sampling.
"""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F  # noqa: N812 - its usual name
from torch import Tensor

from engine.cache.state_pool import StatePool
from engine.model.attention import Attention
from engine.model.experts import ExpertsLayer
from engine.model.head import Head
from engine.model.hybrid_config import HybridConfig, Residual
from engine.model.hybrid_weights import HybridWeights, LinearWeights
from engine.model.layers import AttentionLayer, Pass, norm
from engine.model.linear_attention import LinearAttentionLayer
from engine.model.rope import Rope
from engine.model.state_plan import StatePlan
from engine.model.step import Step
from engine.model.weights import AttentionWeights
from engine.parallel.group import Group
from engine.parallel.layout import WeightShard

__all__ = ["Hybrid"]

Half = Callable[[Tensor, Pass], Tensor]
"""One half of a layer: this rank's part of what is added to normed states."""


class Hybrid:
    """One rank's model; ``group`` is the whole world, ``weights`` are what ``shard`` and ``columns`` say.

    ``columns`` are this rank's of the linear layers' features. The pools have a layer for each layer of their kind.
    """

    def __init__(
        self,
        *,
        model: HybridConfig,
        shard: WeightShard,
        columns: range,
        weights: HybridWeights,
        attention: Attention,
        states: StatePool,
        group: Group,
    ) -> None:
        self._model = model
        self._shard = shard
        self._columns = columns
        self._group = group
        self._attention = attention
        self._states = states
        self._rope = Rope(model, device=weights.embedding.device)
        self._embedding = weights.embedding
        self._final_norm = weights.final_norm
        self._head = Head(weights.head, vocab_size=model.vocab_size, group=group)
        self._halves = [half for index in range(model.num_layers) for half in self._layer(index, weights)]

    def forward(self, step: Step) -> Tensor:
        """Run all layers, moving keys, values and states; final states ``[samples, hidden]`` of the sampled rows."""
        now = Pass(step=step, placement=self._attention.place(step), rotation=self._rope.at(step.positions))
        hidden = F.embedding(step.tokens, self._embedding)  # [T, hidden]
        for before, half, residual in self._halves:
            normed = norm(hidden, before, self._model)
            hidden = normed * residual.kept + self._whole(half(normed, now)) * residual.added
        return norm(hidden[step.sampled], self._final_norm, self._model)

    def logits(self, states: Tensor) -> Tensor:
        """``[samples, vocab]`` of final states, float32, on every rank; all take part."""
        return self._head(states)

    def _whole(self, part: Tensor) -> Tensor:
        """The sum of all ranks' parts."""
        return part if self._group.size == 1 else self._group.all_reduce(part)

    def _layer(self, index: int, weights: HybridWeights) -> list[tuple[Tensor, Half, Residual]]:
        """The halves of one layer, each with the norm before it and how its result is added."""
        layer, model = weights.layers[index], self._model
        experts = ExpertsLayer(weights=layer.mlp, experts_per_token=model.experts_per_token)
        mlp = (layer.mlp.mlp_norm, lambda normed, now: experts(normed), model.mlp_residual)
        match layer.attention:
            case LinearWeights() as linear:
                return [(linear.attention_norm, self._linear(index, linear), model.linear_residual), mlp]
            case AttentionWeights() as full:
                return [(full.attention_norm, self._full(index, full), model.full_residual), mlp]

    def _linear(self, index: int, weights: LinearWeights) -> Half:
        layer = LinearAttentionLayer(
            self._model.linear_layers.index(index),
            model=self._model,
            weights=weights,
            columns=self._columns,
            pool=self._states,
        )
        return lambda normed, now: layer(normed, _plan(now.step))

    def _full(self, index: int, weights: AttentionWeights) -> Half:
        return AttentionLayer(
            self._model.full_layers.index(index),
            model=self._model,
            shard=self._shard,
            weights=weights,
            attention=self._attention,
            rope=self._rope,
            first_rank=self._group.rank == 0,
        ).of_normed


def _plan(step: Step) -> StatePlan:
    assert step.states is not None, "a hybrid's step says nothing of states"
    return step.states
