"""A Llama-shaped decoder, as every rank runs it: same step, same code, its own weights and its own shard of the cache.

The embedding is whole on every rank. Knows nothing of requests or sampling.
"""

from __future__ import annotations

import torch.nn.functional as F  # noqa: N812 - its usual name
from torch import Tensor

from engine.model.attention import Attention
from engine.model.config import ModelConfig
from engine.model.head import Head
from engine.model.layers import AttentionLayer, MlpLayer, Pass, norm
from engine.model.rope import Rope
from engine.model.step import Step
from engine.model.weights import LayerWeights, Weights
from engine.parallel.group import Group
from engine.parallel.layout import WeightShard

__all__ = ["Llama"]


class Llama:
    """One rank's model; ``group`` is the whole world, ``weights`` are what ``shard`` says."""

    def __init__(
        self,
        *,
        model: ModelConfig,
        shard: WeightShard,
        weights: Weights[LayerWeights],
        attention: Attention,
        group: Group,
    ) -> None:
        self._model = model
        self._group = group
        self._attention = attention
        self._rope = Rope(model, device=weights.embedding.device)
        self._embedding = weights.embedding
        self._final_norm = weights.final_norm
        self._head = Head(weights.head, vocab_size=model.vocab_size, group=group)
        self._layers = [
            (
                AttentionLayer(
                    index,
                    model=model,
                    shard=shard,
                    weights=layer,
                    attention=attention,
                    rope=self._rope,
                    first_rank=group.rank == 0,
                ),
                MlpLayer(model=model, weights=layer),
            )
            for index, layer in enumerate(weights.layers)
        ]

    def forward(self, step: Step) -> Tensor:
        """Run all layers, storing keys and values; the final states ``[samples, hidden]`` of the sampled rows."""
        now = Pass(step=step, placement=self._attention.place(step), rotation=self._rope.at(step.positions))
        hidden = F.embedding(step.tokens, self._embedding)  # [T, hidden]
        for attend, feed_forward in self._layers:
            hidden = hidden + self._whole(attend(hidden, now))
            hidden = hidden + self._whole(feed_forward(hidden))
        return norm(hidden[step.sampled], self._final_norm, self._model)

    def logits(self, states: Tensor) -> Tensor:
        """``[samples, vocab]`` of final states, float32, on every rank; all take part."""
        return self._head(states)

    def _whole(self, part: Tensor) -> Tensor:
        """The sum of all ranks' parts."""
        return part if self._group.size == 1 else self._group.all_reduce(part)
