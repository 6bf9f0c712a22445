"""A rank's share of the KV cache: which tokens are its own, and the pages that hold them.

Every rank of a DCP group uses the same block ids and stores ``page_size`` tokens of each block. The rules are
`contract.geometry`'s; here they become lookup tables over the positions of one block, so that whole steps are placed
at once. This module knows nothing of requests, attention or other ranks.
"""

from __future__ import annotations

import math
import mmap

import torch
from torch import Tensor

from contract.geometry import Geometry
from engine.kernels.kv_store import store_kv
from engine.kernels.slot_mapping import NOT_HERE, slot_mapping

__all__ = ["KVPool", "Shard"]


class Shard:
    """The tokens that one rank of a DCP group owns."""

    def __init__(self, geometry: Geometry, *, dcp_rank: int, device: torch.device) -> None:
        positions = range(geometry.block_width)
        self._page_size = geometry.page_size
        self._width = geometry.block_width
        rows = [geometry.local_offset(p) if geometry.owner(p) == dcp_rank else NOT_HERE for p in positions]
        self._rows = torch.tensor(rows, device=device)
        self._up_to = torch.tensor([geometry.local_length(p + 1, rank=dcp_rank) for p in positions], device=device)

    def visible(self, positions: Tensor) -> Tensor:
        """How many of a sequence's own tokens stand at or before each of ``positions``; 0 is an ordinary answer.

        A rank holds its tokens in the order of their positions, so a causal mask is this count: the query at position
        ``p`` sees the rank's first ``visible(p)`` tokens.
        """
        return positions // self._width * self._page_size + self._up_to[positions % self._width]

    def slots(self, positions: Tensor, blocks: Tensor) -> Tensor:
        """Where new tokens go that stand at ``positions`` of the ``blocks`` (ids) that hold them.

        Returns:
            The pool row of each, ``block * page_size + local offset``, or `NOT_HERE` where another rank stores it.
        """
        return slot_mapping(positions, blocks, self._rows, page_size=self._page_size)


class KVPool:
    """Keys and values of all layers on one rank: ``num_blocks`` pages of ``page_size`` rows each."""

    def __init__(
        self,
        *,
        num_layers: int,
        num_blocks: int,
        page_size: int,
        num_kv_heads: int,
        head_dim: int,
        device: torch.device,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        shape = (2, num_layers, num_blocks, page_size, num_kv_heads, head_dim)
        self._pages = _zeros(shape, device=device, dtype=dtype)
        # Views are made once: a decode step asks for those of every layer.
        self._layers = [(keys, values) for keys, values in zip(*(each.unbind() for each in self._pages), strict=True)]
        self._rows = [(keys.flatten(0, 1), values.flatten(0, 1)) for keys, values in self._layers]

    @property
    def nbytes(self) -> int:
        """Memory that the pool takes."""
        return self._pages.nbytes

    def pages(self, layer: int) -> tuple[Tensor, Tensor]:
        """Keys and values of ``layer``, each ``[num_blocks, page_size, num_kv_heads, head_dim]``."""
        return self._layers[layer]

    def store(self, layer: int, *, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        """Write ``keys`` and ``values`` ``[tokens, num_kv_heads, head_dim]`` to the rows ``slots`` ``[tokens]``.

        What has the slot `NOT_HERE` is left out.
        """
        key_rows, value_rows = self._rows[layer]
        store_kv(keys, values, key_rows=key_rows, value_rows=value_rows, slots=slots)


def _zeros(shape: tuple[int, ...], *, device: torch.device, dtype: torch.dtype) -> Tensor:
    """On a CPU out of an anonymous mapping, whose pages cost nothing before they are written: caches are mostly larger
    than what is ever in them, and ``torch.zeros`` would write them all."""
    if device.type != "cpu" or 0 in shape:  # nothing cannot be mapped, and a model without attention has no pages
        return torch.zeros(shape, device=device, dtype=dtype)
    memory = mmap.mmap(-1, math.prod(shape) * dtype.itemsize)
    return torch.frombuffer(memory, dtype=dtype).view(shape)
