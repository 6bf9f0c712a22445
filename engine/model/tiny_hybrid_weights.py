"""Weights of the built-in hybrid model: drawn as `tiny_weights` draws, and to the same end."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.model.checkpoint import TensorTable
from engine.model.hybrid_config import HybridConfig
from engine.model.tiny_weights import Draw, draw_embedding

__all__ = ["draw_hybrid_checkpoint"]


def draw_hybrid_checkpoint(model: HybridConfig) -> TensorTable:
    """All weights of ``model``, float32."""
    draw = Draw()
    tensors = {
        "model.embed_tokens.weight": draw_embedding(draw, model),
        "model.norm.weight": torch.ones(model.hidden_size),
    }
    for layer in range(model.num_layers):
        attention = _draw_linear(draw, model) if layer in model.linear_layers else _draw_full(draw, model)
        drawn = attention | _draw_experts(draw, model)
        drawn |= {norm: torch.ones(model.hidden_size) for norm in ("input_layernorm", "post_attention_layernorm")}
        tensors |= {f"model.layers.{layer}.{name}.weight": tensor for name, tensor in drawn.items()}
    return TensorTable(tensors, origin=model.name)


def _draw_full(draw: Draw, model: HybridConfig) -> dict[str, Tensor]:
    hidden, dim = model.hidden_size, model.head_dim
    return {
        "self_attn.q_proj": draw.matrix(model.num_heads * dim, hidden, gain=1.5),
        "self_attn.k_proj": draw.matrix(model.num_kv_heads * dim, hidden, gain=1.5),
        "self_attn.v_proj": draw.matrix(model.num_kv_heads * dim, hidden, gain=1.0),
        "self_attn.o_proj": draw.matrix(hidden, model.num_heads * dim, gain=4.0),
    }


def _draw_linear(draw: Draw, model: HybridConfig) -> dict[str, Tensor]:
    hidden, features = model.hidden_size, model.num_heads * model.head_dim
    return {
        "self_attn.qkv_proj": draw.matrix(3 * features, hidden, gain=1.5),
        "self_attn.output_gate": draw.matrix(features, hidden, gain=1.0),
        "self_attn.norm": torch.ones(features),
        "self_attn.out_proj": draw.matrix(hidden, features, gain=4.0),
    }


def _draw_experts(draw: Draw, model: HybridConfig) -> dict[str, Tensor]:
    hidden, inner = model.hidden_size, model.intermediate_size
    drawn = {"block_sparse_moe.gate": draw.matrix(model.num_experts, hidden, gain=1.0)}
    for number in range(model.num_experts):
        drawn |= {
            f"block_sparse_moe.experts.{number}.w1": draw.matrix(inner, hidden, gain=1.0),
            f"block_sparse_moe.experts.{number}.w3": draw.matrix(inner, hidden, gain=1.0),
            f"block_sparse_moe.experts.{number}.w2": draw.matrix(hidden, inner, gain=8.0),
        }
    return drawn
