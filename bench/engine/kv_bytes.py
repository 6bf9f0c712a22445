"""What one rank's share of a sequence takes, as the pool that a rank allocates for it says."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from bench.engine.ours import PAGE_SIZE
from bench.figures import Figure, figure
from contract.geometry import Geometry
from engine.cache.pools import KVPool
from engine.model.config import ModelConfig
from engine.parallel.layout import Layout

__all__ = ["kv_bytes"]


def kv_bytes(model_name: str, model: ModelConfig, *, tokens: int, dcp_sizes: Sequence[int]) -> Iterator[Figure]:
    """Bytes a rank at each of ``dcp_sizes``, and the share of what they are at the first of them."""
    sizes = {dcp_size: _pool(model, tokens=tokens, dcp_size=dcp_size).nbytes for dcp_size in dcp_sizes}
    for dcp_size, size in sizes.items():
        case = f"{model_name}, {tokens} tokens, dcp {dcp_size}"
        yield figure("engine", case, "kvsteer", "KV bytes a rank", [size], unit="B")
        yield figure("engine", case, "kvsteer", f"of dcp {dcp_sizes[0]}", [size / sizes[dcp_sizes[0]]], unit="x")


def _pool(model: ModelConfig, *, tokens: int, dcp_size: int) -> KVPool:
    """Of one rank in a world that is one DCP group, which has all heads."""
    geometry = Geometry(page_size=PAGE_SIZE, dcp_size=dcp_size)
    heads = Layout(tp_size=dcp_size, dcp_size=dcp_size).heads(model, group=0)
    return KVPool(
        num_layers=model.num_layers,
        num_blocks=geometry.blocks_for(tokens),
        page_size=geometry.page_size,
        num_kv_heads=heads.num_kv_heads,
        head_dim=model.head_dim,
        device=torch.device("cpu"),
    )
