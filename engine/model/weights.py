"""The weights one rank holds, as its layers multiply with them: read from a checkpoint, cut, and put together.

Queries, keys and values are one matrix, gate and up another. Every tensor of a checkpoint must have a place here, or
the model would be another one than its file says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor

from engine.model.checkpoint import Checkpoint, CheckpointError
from engine.model.config import ModelConfig
from engine.parallel.layout import HeadShard, WeightShard

__all__ = ["AttentionWeights", "LayerWeights", "MlpWeights", "WeightReader", "Weights", "load_weights"]

_WITHOUT_USE = ("rotary_emb.inv_freq", "rotary_emb.cos_cached", "rotary_emb.sin_cached", "masked_bias")
"""Ends of names of tensors that old exporters wrote out, though they follow from the config."""


@dataclass(frozen=True)
class AttentionWeights:
    """One rank's share of one attention; ``qkv`` is queries, keys and values, one after the other."""

    attention_norm: Tensor  # [hidden]
    qkv: Tensor  # [(heads + 2 * kv_heads) * head_dim, hidden]
    qkv_bias: Tensor | None  # [(heads + 2 * kv_heads) * head_dim]
    query_norm: Tensor | None  # [head_dim]
    key_norm: Tensor | None  # [head_dim]
    out: Tensor  # [hidden, own columns]
    out_bias: Tensor | None  # [hidden]


@dataclass(frozen=True)
class MlpWeights:
    """One rank's share of one SwiGLU."""

    mlp_norm: Tensor  # [hidden]
    gate_up: Tensor  # [2 * own intermediate, hidden]
    down: Tensor  # [hidden, own intermediate]


@dataclass(frozen=True)
class LayerWeights(AttentionWeights, MlpWeights):
    """One rank's share of one decoder layer."""


Layer = TypeVar("Layer")


@dataclass(frozen=True)
class Weights(Generic[Layer]):
    """A whole model, as one rank holds it. ``head`` is the output projection; it may be rows of the embedding."""

    embedding: Tensor  # [vocab, hidden]
    layers: tuple[Layer, ...]
    final_norm: Tensor  # [hidden]
    head: Tensor  # [own rows of the vocabulary, hidden]


def load_weights(
    checkpoint: Checkpoint, model: ModelConfig, shard: WeightShard, *, device: torch.device, dtype: torch.dtype
) -> Weights[LayerWeights]:
    """Read what a rank with ``shard`` needs of ``model``.

    Raises:
        CheckpointError: a tensor is missing, has another shape, or has no place in the model.
    """
    reader = WeightReader(checkpoint, model, shard, device=device, dtype=dtype)
    return reader.whole(reader.layer)


class WeightReader:
    """Reads tensors for one rank, and remembers which."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        model: ModelConfig,
        shard: WeightShard,
        *,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self._checkpoint = checkpoint
        self._model = model
        self._shard = shard
        self._device = device
        self._dtype = dtype
        self._read: set[str] = set()

    def read(
        self, name: str, shape: Sequence[int], *, rows: range | None = None, columns: range | None = None
    ) -> Tensor:
        """One tensor or a part of it, where and as the model wants it."""
        self._read.add(name)
        tensor = self._checkpoint.read(name, shape=shape, rows=rows, columns=columns)
        return tensor.to(self._device, self._dtype)

    def pass_over(self, names: Iterable[str]) -> None:
        """The model has a place for these tensors, but need not read them."""
        self._read.update(names)

    def whole(self, layer: Callable[[int], Layer]) -> Weights[Layer]:
        """All of the model, whose layers are read by ``layer``.

        Raises:
            CheckpointError: a tensor is missing, has another shape, or has no place in the model.
        """
        model = self._model
        embedding = self.read("model.embed_tokens.weight", [model.vocab_size, model.hidden_size])
        weights = Weights(
            embedding=embedding,
            layers=tuple(layer(index) for index in range(model.num_layers)),
            final_norm=self.read("model.norm.weight", [model.hidden_size]),
            head=self._head(embedding),
        )
        self._check_all_read()
        return weights

    def _head(self, embedding: Tensor) -> Tensor:
        """The output projection's own rows. Files of models that tie it to the embedding may still hold a copy."""
        name, rows = "lm_head.weight", self._shard.vocabulary
        if self._model.tied_embeddings:
            self.pass_over([name])
            return embedding[rows.start : rows.stop]
        return self.read(name, [self._model.vocab_size, self._model.hidden_size], rows=rows)

    def layer(self, index: int) -> LayerWeights:
        """One decoder layer."""
        return LayerWeights(**vars(self.attention(index)), **vars(self._mlp(index)))

    def attention(self, index: int) -> AttentionWeights:
        """The attention of one decoder layer, and the norm before it."""
        model, prefix = self._model, f"model.layers.{index}."
        hidden, dim, attention = model.hidden_size, model.head_dim, prefix + "self_attn."
        return AttentionWeights(
            attention_norm=self.read(prefix + "input_layernorm.weight", [hidden]),
            qkv=torch.cat(self._qkv(attention, "weight", [hidden])),
            qkv_bias=torch.cat(self._qkv(attention, "bias", [])) if model.qkv_bias else None,
            query_norm=self.read(attention + "q_norm.weight", [dim]) if model.qk_norm else None,
            key_norm=self.read(attention + "k_norm.weight", [dim]) if model.qk_norm else None,
            out=self.read(
                attention + "o_proj.weight", [hidden, model.num_heads * dim], columns=_own_columns(self._shard, dim)
            ),
            out_bias=self.read(attention + "o_proj.bias", [hidden]) if model.out_bias else None,
        )

    def _mlp(self, index: int) -> MlpWeights:
        model, prefix = self._model, f"model.layers.{index}."
        hidden, mlp = model.hidden_size, prefix + "mlp."
        return MlpWeights(
            mlp_norm=self.read(prefix + "post_attention_layernorm.weight", [hidden]),
            gate_up=torch.cat([self._inner_rows(mlp + "gate_proj.weight"), self._inner_rows(mlp + "up_proj.weight")]),
            down=self.read(
                mlp + "down_proj.weight", [hidden, model.intermediate_size], columns=self._shard.intermediate
            ),
        )

    def _qkv(self, prefix: str, kind: str, rest: Sequence[int]) -> list[Tensor]:
        """This rank's rows of the three projections' weights or biases."""
        model, heads = self._model, self._shard.heads
        queries, kv = _query_rows(heads, model.head_dim), _kv_rows(heads, model.head_dim)
        counts = {"q": (model.num_heads, queries), "k": (model.num_kv_heads, kv), "v": (model.num_kv_heads, kv)}
        return [
            self.read(f"{prefix}{letter}_proj.{kind}", [count * model.head_dim, *rest], rows=rows)
            for letter, (count, rows) in counts.items()
        ]

    def _inner_rows(self, name: str) -> Tensor:
        shape = [self._model.intermediate_size, self._model.hidden_size]
        return self.read(name, shape, rows=self._shard.intermediate)

    def _check_all_read(self) -> None:
        """Refuse a checkpoint with a tensor that this model does not multiply with."""
        for name in sorted(self._checkpoint.names):
            if name not in self._read and not name.endswith(_WITHOUT_USE):
                raise CheckpointError(f"tensor {name} has no place in model {self._model.name}, as its config is")


def _query_rows(heads: HeadShard, dim: int) -> range:
    return range(heads.first_head * dim, (heads.first_head + heads.num_heads) * dim)


def _kv_rows(heads: HeadShard, dim: int) -> range:
    return range(heads.first_kv_head * dim, (heads.first_kv_head + heads.num_kv_heads) * dim)


def _own_columns(shard: WeightShard, dim: int) -> range:
    """The rank's columns of the projection after attention, among those of all heads."""
    first = shard.heads.first_head * dim
    return range(first + shard.out_columns.start, first + shard.out_columns.stop)
