"""The reference that the sharded, paged, batched model is held against: one sequence, no cache, full attention."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from torch import Tensor

from engine.model.config import TINY, ModelConfig
from engine.model.tiny_weights import draw_checkpoint
from engine.model.weights import LayerWeights, Weights, load_weights
from engine.parallel.layout import Layout


@cache
def whole_weights(model: ModelConfig = TINY) -> Weights[LayerWeights]:
    shard = Layout().weights(model, rank=0)
    return load_weights(draw_checkpoint(model), model, shard, device=torch.device("cpu"), dtype=torch.float32)


def naive_logits(tokens: Sequence[int], model: ModelConfig = TINY) -> Tensor:
    """``[tokens, vocab]``: row ``i`` is about the token after ``tokens[i]``."""
    weights = whole_weights(model)
    hidden = weights.embedding[list(tokens)]
    for layer in weights.layers:
        hidden = hidden + attention(hidden, layer, model)
        gate, up = (norm(hidden, model) * layer.mlp_norm @ layer.gate_up.T).chunk(2, dim=1)
        hidden = hidden + (gate * gate.sigmoid() * up) @ layer.down.T
    return norm(hidden, model) * weights.final_norm @ weights.embedding.T


def attention(hidden: Tensor, layer: LayerWeights, model: ModelConfig) -> Tensor:
    length, dim = len(hidden), model.head_dim
    qkv = (norm(hidden, model) * layer.attention_norm @ layer.qkv.T).view(length, -1, dim)
    queries, keys, values = torch.split(qkv, [model.num_heads, model.num_kv_heads, model.num_kv_heads], dim=1)
    group = model.num_heads // model.num_kv_heads
    queries = turned(queries, model)
    keys = turned(keys, model).repeat_interleave(group, dim=1)
    scores = torch.einsum("qhd,khd->hqk", queries, keys) / dim**0.5
    scores = scores.masked_fill(torch.ones(length, length).triu(1).bool(), float("-inf"))
    attended = torch.einsum("hqk,khd->qhd", F.softmax(scores, dim=-1), values.repeat_interleave(group, dim=1))
    return attended.flatten(1) @ layer.out.T


def turned(states: Tensor, model: ModelConfig) -> Tensor:
    """Rotary positions by complex multiplication: dimension ``i`` is the real part of what ``i + dim/2`` completes."""
    half = model.head_dim // 2
    speeds = model.rope_theta ** -(torch.arange(half, dtype=torch.float64) / half)
    angles = torch.arange(len(states), dtype=torch.float64)[:, None] * speeds
    spin = torch.polar(torch.ones_like(angles), angles)[:, None, :]
    both = torch.complex(states[..., :half].double(), states[..., half:].double()) * spin
    return torch.cat([both.real, both.imag], dim=-1).float()


def norm(hidden: Tensor, model: ModelConfig) -> Tensor:
    return hidden * (hidden.pow(2).mean(dim=1, keepdim=True) + model.rms_eps).rsqrt()
