"""Every Triton kernel with inputs of given sizes, its reference on the same inputs, and the bytes it has to move."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from contract.geometry import Geometry
from engine.kernels.extend_attention import extend_attention_reference
from engine.kernels.extend_attention_triton import extend_attention_triton
from engine.kernels.kernel_tables import kernel_tables_reference
from engine.kernels.kernel_tables_triton import kernel_tables_triton
from engine.kernels.kv_store import store_kv_reference
from engine.kernels.kv_store_triton import store_kv_triton
from engine.kernels.lse_merge import merge_reference
from engine.kernels.lse_merge_triton import merge_triton
from engine.kernels.paged_decode import paged_decode_reference
from engine.kernels.paged_decode_triton import paged_decode_triton
from engine.kernels.slot_mapping import NOT_HERE, slot_mapping_reference
from engine.kernels.slot_mapping_triton import slot_mapping_triton

__all__ = ["Case", "Sizes", "cases", "large_sizes", "odd_sizes"]

Tensors = tuple[Tensor, ...]
_EXTENDED = 256  # new tokens of one sequence that the engine attends with at once


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Of a rank's work. ``batch`` sequences of up to ``context`` own tokens; ``tokens`` new ones in a step."""

    batch: int
    context: int
    tokens: int
    kv_heads: int
    group: int
    head_dim: int
    geometry: Geometry
    dtype: torch.dtype
    device: torch.device


def odd_sizes(device: torch.device) -> Sizes:
    """Sizes that fill no tile, in float32."""
    return Sizes(
        batch=5,
        context=71,
        tokens=37,
        kv_heads=2,
        group=3,
        head_dim=24,
        geometry=Geometry(page_size=6, dcp_size=3, interleave=2),
        dtype=torch.float32,
        device=device,
    )


def large_sizes(device: torch.device) -> Sizes:
    """An 8B Llama's heads on one of four ranks of a DCP group, in bfloat16.

    KV store, decode and merge move more than a GPU's cache holds; the other kernels are small whatever the step.
    """
    return Sizes(
        batch=32,
        context=4096,
        tokens=65_536,
        kv_heads=8,
        group=4,
        head_dim=128,
        geometry=Geometry(page_size=16, dcp_size=4),
        dtype=torch.bfloat16,
        device=device,
    )


@dataclass(frozen=True, kw_only=True)
class Case:
    """One kernel at work. Its results may differ by ``tolerance``, relative and absolute, from those of float32."""

    name: str
    kernel: Callable[[], Tensors]
    reference: Callable[[], Tensors]
    moved_bytes: int
    tolerance: float

    def error(self) -> float | None:
        """The largest difference from the reference; None where it is more than may be."""
        worst = 0.0
        for one, other in zip(self.kernel(), self.reference(), strict=True):
            one, other = one.double(), other.double()
            if not torch.allclose(one, other, rtol=self.tolerance, atol=self.tolerance):
                return None
            worst = max(worst, float((one - other).nan_to_num(nan=0.0).abs().max()))  # both may be -inf
        return worst


def cases(sizes: Sizes, *, seed: int) -> Iterator[Case]:
    """All kernels, on inputs drawn from ``seed``; each is made when it is asked for."""
    torch.manual_seed(seed)
    for make in (_slot_mapping, _kv_store, _kernel_tables, _paged_decode, _extend_attention, _lse_merge):
        yield make(sizes)


def _slot_mapping(sizes: Sizes) -> Case:
    geometry, device = sizes.geometry, sizes.device
    places = range(geometry.block_width)
    rows = torch.tensor([geometry.local_offset(p) if geometry.owner(p) == 0 else NOT_HERE for p in places]).to(device)
    positions = torch.randint(0, sizes.context, (sizes.tokens,), device=device)
    blocks = torch.randint(NOT_HERE, sizes.batch, (sizes.tokens,), device=device)
    return Case(
        name="slot mapping",
        kernel=lambda: (slot_mapping_triton(positions, blocks, rows, page_size=geometry.page_size),),
        reference=lambda: (slot_mapping_reference(positions, blocks, rows, page_size=geometry.page_size),),
        moved_bytes=2 * positions.nbytes + blocks.nbytes,
        tolerance=0.0,
    )


def _kv_store(sizes: Sizes) -> Case:
    """Into a layer that has as many slots as there are tokens; every second one of those is another rank's."""
    shape = (sizes.tokens, sizes.kv_heads, sizes.head_dim)
    keys, values = torch.randn(2, *shape, device=sizes.device, dtype=sizes.dtype)
    slots = torch.randperm(sizes.tokens, device=sizes.device)
    slots[::2] = NOT_HERE
    stored, expected = torch.zeros(2, 2, *shape, device=sizes.device, dtype=sizes.dtype)

    def kernel() -> Tensors:
        store_kv_triton(keys, values, key_rows=stored[0], value_rows=stored[1], slots=slots)
        return (stored,)

    def reference() -> Tensors:
        store_kv_reference(keys, values, key_rows=expected[0], value_rows=expected[1], slots=slots)
        return (expected,)

    moved = slots.nbytes + 4 * keys[1::2].numel() * keys.itemsize  # keys and values are each read and written
    return Case(name="KV store", kernel=kernel, reference=reference, moved_bytes=moved, tolerance=0.0)


def _kernel_tables(sizes: Sizes) -> Case:
    tables = torch.randint(0, sizes.tokens, (sizes.batch, sizes.tokens // sizes.batch), device=sizes.device)
    return Case(
        name="kernel tables",
        kernel=lambda: (kernel_tables_triton(tables, pages_per_block=4),),
        reference=lambda: (kernel_tables_reference(tables, pages_per_block=4),),
        moved_bytes=5 * tables.nbytes,
        tolerance=0.0,
    )


def _paged_decode(sizes: Sizes) -> Case:
    """Of ragged lengths; the first sequence has no token here, the last one all it may have."""
    keys, values, tables = _pool(sizes, sequences=sizes.batch)
    lengths = torch.randint(1, sizes.context + 1, (sizes.batch,), device=sizes.device)
    lengths[0], lengths[-1] = 0, sizes.context
    queries = _queries(sizes, sizes.batch)
    seen = int(lengths.sum()) * sizes.kv_heads * sizes.head_dim
    return Case(
        name="paged decode",
        kernel=lambda: paged_decode_triton(queries, keys, values, tables, lengths),
        reference=lambda: paged_decode_reference(queries.float(), keys.float(), values.float(), tables, lengths),
        moved_bytes=2 * seen * keys.itemsize + 2 * queries.nbytes,
        tolerance=_tolerance(sizes.dtype),
    )


def _extend_attention(sizes: Sizes) -> Case:
    """New tokens at the end of a context, of which this rank holds every other one."""
    keys, values, tables = _pool(sizes, sequences=1)
    tokens = min(_EXTENDED, sizes.context)
    owned = torch.arange(tokens, device=sizes.device) % 2
    visible = owned.cumsum(0) + sizes.context - int(owned.sum())
    queries = _queries(sizes, tokens)
    seen = sizes.context * sizes.kv_heads * sizes.head_dim
    return Case(
        name="extend attention",
        kernel=lambda: extend_attention_triton(queries, keys, values, tables[0], visible),
        reference=lambda: extend_attention_reference(
            queries.float(), keys.float(), values.float(), tables[0], visible, longest=sizes.context
        ),
        moved_bytes=2 * seen * keys.itemsize + 2 * queries.nbytes,
        tolerance=_tolerance(sizes.dtype),
    )


def _lse_merge(sizes: Sizes) -> Case:
    """Of what all ranks of a group have of one query a row; some of them have nothing."""
    tokens = -(-sizes.tokens // 32)  # a row here is all ranks' whole heads
    shape = (sizes.geometry.dcp_size, tokens, sizes.kv_heads * sizes.group, sizes.head_dim + 1)
    packed = torch.randn(shape, device=sizes.device)
    outputs, lses = packed[..., :-1], packed[..., -1]
    lses[torch.rand(lses.shape, device=sizes.device) < 0.1] = float("-inf")
    return Case(
        name="LSE merge",
        kernel=lambda: merge_triton(outputs, lses),
        reference=lambda: merge_reference(outputs, lses),
        moved_bytes=packed.nbytes + packed[0].nbytes,
        tolerance=_tolerance(torch.float32),
    )


def _pool(sizes: Sizes, *, sequences: int) -> tuple[Tensor, Tensor, Tensor]:
    """Pages of keys and values in any order, and the tables ``[sequences, columns]`` that put them in order."""
    columns = -(-sizes.context // sizes.geometry.page_size)
    shape = (sequences * columns, sizes.geometry.page_size, sizes.kv_heads, sizes.head_dim)
    keys, values = torch.randn(2, *shape, device=sizes.device, dtype=sizes.dtype)
    return keys, values, torch.randperm(shape[0], device=sizes.device).view(sequences, columns)


def _queries(sizes: Sizes, tokens: int) -> Tensor:
    shape = (tokens, sizes.kv_heads * sizes.group, sizes.head_dim)
    return torch.randn(shape, device=sizes.device, dtype=sizes.dtype)


def _tolerance(dtype: torch.dtype) -> float:
    return 1e-5 if dtype == torch.float32 else 2e-2
