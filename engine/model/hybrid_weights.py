"""The weights of a hybrid model that one rank holds, read from a checkpoint with transformers' names for MiniMax."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.model.checkpoint import Checkpoint
from engine.model.hybrid_config import HybridConfig
from engine.model.weights import AttentionWeights, WeightReader, Weights
from engine.parallel.layout import WeightShard

__all__ = ["ExpertWeights", "HybridLayerWeights", "HybridWeights", "LinearWeights", "decay_slopes", "load_hybrid"]

_DERIVED = ("slope_rate", "query_decay", "key_decay", "diagonal_decay")
"""Tensors that transformers writes out for each linear layer, though they follow from the config."""


@dataclass(frozen=True)
class LinearWeights:
    """One rank's share of one linear attention: all heads, but only own columns behind them."""

    attention_norm: Tensor  # [hidden]
    qkv: Tensor  # [heads * 3 * head_dim, hidden], query, key and value of each head next to each other
    inner_norm: Tensor  # [own columns]
    gate: Tensor  # [own columns, hidden]
    out: Tensor  # [hidden, own columns]
    slopes: Tensor  # [heads], how fast each head forgets


@dataclass(frozen=True)
class ExpertWeights:
    """One rank's features of every expert of one layer; ``experts`` are their gate and up in one, and their down."""

    mlp_norm: Tensor  # [hidden]
    router: Tensor  # [experts, hidden]
    experts: tuple[tuple[Tensor, Tensor], ...]  # [2 * own intermediate, hidden] and [hidden, own intermediate]


@dataclass(frozen=True)
class HybridLayerWeights:
    """One decoder layer; the type of ``attention`` says which kind it is of."""

    attention: AttentionWeights | LinearWeights
    mlp: ExpertWeights


HybridWeights = Weights[HybridLayerWeights]
"""A whole model, as one rank holds it."""


def load_hybrid(
    checkpoint: Checkpoint,
    model: HybridConfig,
    shard: WeightShard,
    *,
    columns: range,
    device: torch.device,
    dtype: torch.dtype,
) -> HybridWeights:
    """Read what a rank with ``shard``, and ``columns`` of the linear layers' features, needs of ``model``.

    Raises:
        CheckpointError: a tensor is missing, has another shape, or has no place in the model.
    """
    reader = WeightReader(checkpoint, model, shard, device=device, dtype=dtype)
    return reader.whole(_LayerReader(reader, model, shard, columns, device).layer)


def decay_slopes(model: HybridConfig, layer: int, *, device: torch.device) -> Tensor:
    """``[heads]``: head ``h`` forgets by ``exp(-slope)`` a token, later layers less than earlier ones."""
    base = 1 / 2 ** (8 / model.num_heads)
    factor = 1 - layer / (model.num_layers - 1 + 1e-5) + 1e-5
    heads = torch.arange(1, model.num_heads + 1, device=device)
    return torch.pow(base, heads) * factor


class _LayerReader:
    def __init__(
        self, reader: WeightReader, model: HybridConfig, shard: WeightShard, columns: range, device: torch.device
    ) -> None:
        self._reader = reader
        self._model = model
        self._shard = shard
        self._columns = columns
        self._device = device

    def layer(self, index: int) -> HybridLayerWeights:
        is_linear = index in self._model.linear_layers
        attention = self._linear(index) if is_linear else self._reader.attention(index)
        return HybridLayerWeights(attention=attention, mlp=self._experts(index))

    def _linear(self, index: int) -> LinearWeights:
        model, read = self._model, self._reader.read
        layer, hidden, features = f"model.layers.{index}.", model.hidden_size, model.num_heads * model.head_dim
        attention = layer + "self_attn."
        self._reader.pass_over(attention + name for name in _DERIVED)
        return LinearWeights(
            attention_norm=read(layer + "input_layernorm.weight", [hidden]),
            qkv=read(attention + "qkv_proj.weight", [3 * features, hidden]),
            inner_norm=read(attention + "norm.weight", [features], rows=self._columns),
            gate=read(attention + "output_gate.weight", [features, hidden], rows=self._columns),
            out=read(attention + "out_proj.weight", [hidden, features], columns=self._columns),
            slopes=decay_slopes(model, index, device=self._device),
        )

    def _experts(self, index: int) -> ExpertWeights:
        model, layer = self._model, f"model.layers.{index}."
        moe = layer + "block_sparse_moe."
        return ExpertWeights(
            mlp_norm=self._reader.read(layer + "post_attention_layernorm.weight", [model.hidden_size]),
            router=self._reader.read(moe + "gate.weight", [model.num_experts, model.hidden_size]),
            experts=tuple(self._expert(f"{moe}experts.{number}.") for number in range(model.num_experts)),
        )

    def _expert(self, prefix: str) -> tuple[Tensor, Tensor]:
        """``w1`` is the gate, ``w3`` what it gates, ``w2`` leads back."""
        inner, hidden, own = self._model.intermediate_size, self._model.hidden_size, self._shard.intermediate
        gate_up = [self._reader.read(f"{prefix}{name}.weight", [inner, hidden], rows=own) for name in ("w1", "w3")]
        return torch.cat(gate_up), self._reader.read(prefix + "w2.weight", [hidden, inner], columns=own)
