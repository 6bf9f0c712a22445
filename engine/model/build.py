"""Puts one rank's model together: its share of the weights, its share of the cache, and the code that runs them."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from contract.geometry import Geometry
from engine.cache.pools import KVPool
from engine.cache.state_pool import StatePool
from engine.model.attention import Attention
from engine.model.checkpoint import Checkpoint
from engine.model.config import ModelConfig
from engine.model.hybrid import Hybrid
from engine.model.hybrid_config import HybridConfig
from engine.model.hybrid_weights import load_hybrid
from engine.model.llama import Llama
from engine.model.source import ModelSource
from engine.model.step import Step
from engine.model.tiny_hybrid_weights import draw_hybrid_checkpoint
from engine.model.tiny_weights import draw_checkpoint
from engine.model.weights import load_weights
from engine.parallel.group import Group
from engine.parallel.layout import Layout, WeightShard

__all__ = ["Model", "build_model", "open_checkpoint"]


class Model(Protocol):
    """One rank's model."""

    def forward(self, step: Step) -> Tensor:
        """Run all layers, storing what they keep; the final states ``[samples, hidden]`` of the sampled rows."""
        ...

    def logits(self, states: Tensor) -> Tensor:
        """``[samples, vocab]`` of final states, float32, on every rank; all take part."""
        ...


def build_model(
    source: ModelSource,
    *,
    layout: Layout,
    geometry: Geometry,
    num_blocks: int,
    device: torch.device,
    dtype: torch.dtype,
    group: Group,
    state_slots: int = 0,
) -> Model:
    """The model as the rank of ``group``, which is the whole world of ``layout``, runs it.

    ``state_slots`` are slots of states, where the model has states.

    Raises:
        CheckpointError: the source does not hold what the model needs.
    """
    model, checkpoint = source.config, open_checkpoint(source)
    shard = layout.weights(model, rank=group.rank)
    pool = _kv_pool(model, shard, page_size=geometry.page_size, num_blocks=num_blocks, device=device, dtype=dtype)
    attention = Attention(pool=pool, geometry=geometry, group=group.subgroup(size=layout.dcp_size), device=device)
    if not isinstance(model, HybridConfig):
        weights = load_weights(checkpoint, model, shard, device=device, dtype=dtype)
        return Llama(model=model, shard=shard, weights=weights, attention=attention, group=group)
    columns = layout.features(model.num_heads * model.head_dim, rank=group.rank)
    return Hybrid(
        model=model,
        shard=shard,
        columns=columns,
        weights=load_hybrid(checkpoint, model, shard, columns=columns, device=device, dtype=dtype),
        attention=attention,
        states=_state_pool(model, slots=state_slots, device=device),
        group=group,
    )


def _kv_pool(
    model: ModelConfig,
    shard: WeightShard,
    *,
    page_size: int,
    num_blocks: int,
    device: torch.device,
    dtype: torch.dtype,
) -> KVPool:
    return KVPool(
        num_layers=len(model.full_layers) if isinstance(model, HybridConfig) else model.num_layers,
        num_blocks=num_blocks,
        page_size=page_size,
        num_kv_heads=shard.heads.num_kv_heads,
        head_dim=model.head_dim,
        device=device,
        dtype=dtype,
    )


def _state_pool(model: HybridConfig, *, slots: int, device: torch.device) -> StatePool:
    """The same on every rank: all heads, whatever the layout."""
    return StatePool(
        num_layers=len(model.linear_layers),
        slots=slots,
        shape=(model.num_heads, model.head_dim, model.head_dim),
        device=device,
    )


def open_checkpoint(source: ModelSource) -> Checkpoint:
    """The weights of ``source``, to be read.

    Raises:
        CheckpointError: its files cannot be read.
    """
    match source.kind:
        case "drawn":
            return _drawn(source.config)
        case "folder":
            from engine.model.safetensors_checkpoint import SafetensorsCheckpoint

            return SafetensorsCheckpoint(Path(source.path))
        case "gguf":
            from engine.model.gguf_checkpoint import GgufCheckpoint

            return GgufCheckpoint(Path(source.path), head_dim=source.config.head_dim)


def _drawn(model: ModelConfig) -> Checkpoint:
    return draw_hybrid_checkpoint(model) if isinstance(model, HybridConfig) else draw_checkpoint(model)
