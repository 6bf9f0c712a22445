"""Weights of the built-in model: drawn from a seed, not loaded.

They come from integers of a fixed generator (Mersenne Twister) scaled by powers of two and single multiplications, and
are the same to the last bit on every machine, so no rank need send any. Their scales are chosen so that the answers of
an untrained model are worth looking at: layers outweigh the embedding, so that the next token depends on the whole
context and is not just the last one again; printable characters have longer embeddings than other ids, so that answers
are mostly readable.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from engine.model.checkpoint import TensorTable
from engine.model.config import ModelConfig

__all__ = ["Draw", "draw_checkpoint", "draw_embedding"]

_SEED = 0
_GRAIN = 2**15
_EMBEDDING_NORM = 4.0


def draw_checkpoint(model: ModelConfig) -> TensorTable:
    """All weights of ``model``, float32."""
    draw = Draw()
    tensors = {
        "model.embed_tokens.weight": draw_embedding(draw, model),
        "model.norm.weight": torch.ones(model.hidden_size),
    }
    for layer in range(model.num_layers):
        tensors |= {f"model.layers.{layer}.{name}.weight": drawn for name, drawn in _draw_layer(draw, model).items()}
    return TensorTable(tensors, origin=model.name)


def draw_embedding(draw: Draw, model: ModelConfig) -> Tensor:
    """``[vocab, hidden]``, which is the output projection too."""
    return draw.matrix(model.vocab_size, model.hidden_size, gain=_EMBEDDING_NORM) * _embedding_lengths(model)


def _draw_layer(draw: Draw, model: ModelConfig) -> dict[str, Tensor]:
    """In this order; another one would be another model."""
    hidden, inner, dim = model.hidden_size, model.intermediate_size, model.head_dim
    drawn = {
        "self_attn.q_proj": draw.matrix(model.num_heads * dim, hidden, gain=1.5),
        "self_attn.k_proj": draw.matrix(model.num_kv_heads * dim, hidden, gain=1.5),
        "self_attn.v_proj": draw.matrix(model.num_kv_heads * dim, hidden, gain=1.0),
        "self_attn.o_proj": draw.matrix(hidden, model.num_heads * dim, gain=4.0),
    }
    gate, up = draw.matrix(2 * inner, hidden, gain=1.0).chunk(2)
    return drawn | {
        "mlp.gate_proj": gate,
        "mlp.up_proj": up,
        "mlp.down_proj": draw.matrix(hidden, inner, gain=8.0),
        "input_layernorm": torch.ones(hidden),
        "post_attention_layernorm": torch.ones(hidden),
    }


def _embedding_lengths(model: ModelConfig) -> Tensor:
    """Factor of each id's embedding ``[vocab, 1]``: 1 for what an answer may be made of, less for the rest."""
    lengths = torch.full((model.vocab_size, 1), 0.25)
    lengths[[ord("\n"), *range(ord(" "), ord("~") + 1)]] = 1.0
    lengths[list(model.eos_token_ids)] = 0.8
    return lengths


class Draw:
    """Uniform random matrices, one after the other, always the same."""

    def __init__(self) -> None:
        self._generator = torch.Generator().manual_seed(_SEED)

    def matrix(self, rows: int, columns: int, *, gain: float) -> Tensor:
        """``[rows, columns]``; multiplied with a vector of root mean square 1 it gives one of about ``gain``."""
        grains = torch.randint(-_GRAIN, _GRAIN, (rows, columns), generator=self._generator)
        return grains.float() / _GRAIN * (gain * math.sqrt(3 / columns))
