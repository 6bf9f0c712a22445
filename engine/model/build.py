"""Puts one rank's model together: its share of the weights, its share of the cache, and the code that runs them."""

from __future__ import annotations

from pathlib import Path

import torch

from contract.geometry import Geometry
from engine.cache.pools import KVPool
from engine.model.attention import Attention
from engine.model.checkpoint import Checkpoint
from engine.model.llama import Llama
from engine.model.source import ModelSource
from engine.model.tiny_weights import draw_checkpoint
from engine.model.weights import load_weights
from engine.parallel.group import Group
from engine.parallel.layout import Layout

__all__ = ["build_model", "open_checkpoint"]


def build_model(
    source: ModelSource,
    *,
    layout: Layout,
    geometry: Geometry,
    num_blocks: int,
    device: torch.device,
    dtype: torch.dtype,
    group: Group,
) -> Llama:
    """The model as the rank of ``group``, which is the whole world of ``layout``, runs it.

    Raises:
        CheckpointError: the source does not hold what the model needs.
    """
    model = source.config
    shard = layout.weights(model, rank=group.rank)
    pool = KVPool(
        num_layers=model.num_layers,
        num_blocks=num_blocks,
        page_size=geometry.page_size,
        num_kv_heads=shard.heads.num_kv_heads,
        head_dim=model.head_dim,
        device=device,
        dtype=dtype,
    )
    attention = Attention(pool=pool, geometry=geometry, group=group.subgroup(size=layout.dcp_size), device=device)
    weights = load_weights(open_checkpoint(source), model, shard, device=device, dtype=dtype)
    return Llama(model=model, shard=shard, weights=weights, attention=attention, group=group)


def open_checkpoint(source: ModelSource) -> Checkpoint:
    """The weights of ``source``, to be read.

    Raises:
        CheckpointError: its files cannot be read.
    """
    match source.kind:
        case "drawn":
            return draw_checkpoint(source.config)
        case "folder":
            from engine.model.safetensors_checkpoint import SafetensorsCheckpoint

            return SafetensorsCheckpoint(Path(source.path))
        case "gguf":
            from engine.model.gguf_checkpoint import GgufCheckpoint

            return GgufCheckpoint(Path(source.path), head_dim=source.config.head_dim)
