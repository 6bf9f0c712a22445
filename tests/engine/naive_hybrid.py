"""The reference that the hybrid model is held against: one sequence, no cache, one token after the other."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch
from naive_llama import attention, norm
from torch import Tensor

from engine.model.hybrid_config import TINY_HYBRID, HybridConfig, Residual
from engine.model.hybrid_weights import ExpertWeights, HybridWeights, LinearWeights, load_hybrid
from engine.model.tiny_hybrid_weights import draw_hybrid_checkpoint
from engine.parallel.layout import Layout


@cache
def whole_weights(model: HybridConfig = TINY_HYBRID) -> HybridWeights:
    return load_hybrid(
        draw_hybrid_checkpoint(model),
        model,
        Layout().weights(model, rank=0),
        columns=range(model.num_heads * model.head_dim),
        device=torch.device("cpu"),
        dtype=torch.float32,
    )


def naive_logits(tokens: Sequence[int], model: HybridConfig = TINY_HYBRID) -> Tensor:
    """``[tokens, vocab]``: row ``i`` is about the token after ``tokens[i]``."""
    weights = whole_weights(model)
    hidden = weights.embedding[list(tokens)]
    for layer in weights.layers:
        first = norm(hidden, model) * layer.attention.attention_norm
        if isinstance(layer.attention, LinearWeights):
            hidden = joined(first, linear_attention(first, layer.attention, model), model.linear_residual)
        else:
            hidden = joined(first, attention(hidden, layer.attention, model), model.full_residual)
        second = norm(hidden, model) * layer.mlp.mlp_norm
        hidden = joined(second, experts(second, layer.mlp, model), model.mlp_residual)
    return norm(hidden, model) * weights.final_norm @ weights.head.T


def joined(before: Tensor, result: Tensor, residual: Residual) -> Tensor:
    return residual.kept * before + residual.added * result


def linear_attention(normed: Tensor, layer: LinearWeights, model: HybridConfig) -> Tensor:
    qkv = torch.nn.functional.silu(normed @ layer.qkv.T).view(len(normed), model.num_heads, 3, model.head_dim)
    keep = torch.exp(-layer.slopes)
    outputs = []
    states = [torch.zeros(model.head_dim, model.head_dim)] * model.num_heads
    for token in qkv:
        states = [keep[head] * states[head] + torch.outer(k, v) for head, (_, k, v) in enumerate(token)]
        outputs.append(torch.cat([q @ states[head] for head, (q, _, _) in enumerate(token)]))
    attended = torch.stack(outputs)
    scaled = attended * (attended.pow(2).mean(dim=1, keepdim=True) + 1e-6).rsqrt() * layer.inner_norm
    return (torch.sigmoid(normed @ layer.gate.T) * scaled) @ layer.out.T


def experts(normed: Tensor, layer: ExpertWeights, model: HybridConfig) -> Tensor:
    rows = []
    for state in normed:
        chances = torch.softmax(layer.router @ state, dim=0)
        best = chances.argsort(descending=True)[: model.experts_per_token]
        total = sum(chances[index] for index in best)
        rows.append(sum(chances[index] / total * expert(state, *layer.experts[index]) for index in best))
    return torch.stack(rows)


def expert(state: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    gate, up = (gate_up @ state).chunk(2)
    return down @ (gate * gate.sigmoid() * up)
