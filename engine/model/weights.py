"""Weights of the built-in model: drawn from a seed, not loaded.

Every rank draws all of them and keeps its share, so no rank need send any. They come from integers of a fixed
generator (Mersenne Twister) scaled by powers of two and single multiplications, and are the same to the last bit on
every machine. Their scales are chosen so that the answers of an untrained model are worth looking at: layers outweigh
the embedding, so that the next token depends on the whole context and is not just the last one again; printable
characters have longer embeddings than other ids, so that answers are mostly readable.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.model.config import ModelConfig
from engine.parallel.layout import HeadShard

__all__ = ["LayerWeights", "Weights", "draw_weights"]

_GRAIN = 2**15
_EMBEDDING_NORM = 4.0


@dataclass(frozen=True)
class LayerWeights:
    """One decoder layer. ``qkv`` holds this rank's heads only, queries, keys and values one after the other."""

    attention_norm: Tensor  # [hidden]
    qkv: Tensor  # [(heads + 2 * kv_heads) * head_dim, hidden]
    out: Tensor  # [hidden, all heads * head_dim]
    mlp_norm: Tensor  # [hidden]
    gate_up: Tensor  # [2 * intermediate, hidden]
    down: Tensor  # [hidden, intermediate]


@dataclass(frozen=True)
class Weights:
    """A whole model; the embedding is the output projection too."""

    embedding: Tensor  # [vocab, hidden]
    layers: tuple[LayerWeights, ...]
    final_norm: Tensor  # [hidden]


def draw_weights(model: ModelConfig, heads: HeadShard, *, device: torch.device) -> Weights:
    """The weights of ``model`` that a rank with ``heads`` needs, float32."""
    draw = _Draw(model.seed)
    embedding = draw.matrix(model.vocab_size, model.hidden_size, gain=_EMBEDDING_NORM) * _embedding_lengths(model)
    return Weights(
        embedding=embedding.to(device),
        layers=tuple(_draw_layer(draw, model, heads, device) for _ in range(model.num_layers)),
        final_norm=torch.ones(model.hidden_size, device=device),
    )


def _draw_layer(draw: _Draw, model: ModelConfig, heads: HeadShard, device: torch.device) -> LayerWeights:
    hidden, dim = model.hidden_size, model.head_dim
    queries = draw.matrix(model.num_heads * dim, hidden, gain=1.5)
    keys = draw.matrix(model.num_kv_heads * dim, hidden, gain=1.5)
    values = draw.matrix(model.num_kv_heads * dim, hidden, gain=1.0)
    own_queries = slice(heads.first_head * dim, (heads.first_head + heads.num_heads) * dim)
    own_kv = slice(heads.first_kv_head * dim, (heads.first_kv_head + heads.num_kv_heads) * dim)
    return LayerWeights(
        attention_norm=torch.ones(hidden, device=device),
        qkv=torch.cat([queries[own_queries], keys[own_kv], values[own_kv]]).to(device),
        out=draw.matrix(hidden, model.num_heads * dim, gain=4.0).to(device),
        mlp_norm=torch.ones(hidden, device=device),
        gate_up=draw.matrix(2 * model.intermediate_size, hidden, gain=1.0).to(device),
        down=draw.matrix(hidden, model.intermediate_size, gain=8.0).to(device),
    )


def _embedding_lengths(model: ModelConfig) -> Tensor:
    """Factor of each id's embedding ``[vocab, 1]``: 1 for what an answer may be made of, less for the rest."""
    lengths = torch.full((model.vocab_size, 1), 0.25)
    lengths[[ord("\n"), *range(ord(" "), ord("~") + 1)]] = 1.0
    lengths[list(model.eos_token_ids)] = 0.8
    return lengths


class _Draw:
    """Uniform random matrices, one after the other."""

    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)

    def matrix(self, rows: int, columns: int, *, gain: float) -> Tensor:
        """``[rows, columns]``; multiplied with a vector of root mean square 1 it gives one of about ``gain``."""
        grains = torch.randint(-_GRAIN, _GRAIN, (rows, columns), generator=self._generator)
        return grains.float() / _GRAIN * (gain * math.sqrt(3 / columns))
