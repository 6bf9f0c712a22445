"""`engine.kernels.kernel_tables` as a Triton kernel: one program writes a run of one sequence's table."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = ["kernel_tables_kernel", "kernel_tables_triton"]

_BLOCK_COLUMNS = 256


@triton.jit  # type: ignore[untyped-decorator]
def kernel_tables_kernel(  # type: ignore[no-untyped-def]
    tables, expanded, table_stride, columns, pages_per_block, block_columns: tl.constexpr
):
    """Program ``(sequence, run of block_columns kernel pages)``. ``columns`` are those of ``expanded``."""
    sequence = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * block_columns + tl.arange(0, block_columns)
    there = column < columns
    block = tl.load(tables + sequence * table_stride + column // pages_per_block, mask=there, other=0)
    page = block * pages_per_block + column % pages_per_block
    tl.store(expanded + sequence * columns + column, page, mask=there)


def kernel_tables_triton(tables: Tensor, *, pages_per_block: int) -> Tensor:
    """`engine.kernels.kernel_tables.kernel_tables` on the GPU; same arguments and results."""
    assert tables.stride(1) == 1, f"a table's row must be dense, its stride is {tables.stride(1)}"
    batch, columns = tables.shape[0], tables.shape[1] * pages_per_block
    expanded = torch.empty((batch, columns), device=tables.device, dtype=tables.dtype)
    kernel_tables_kernel[(batch, triton.cdiv(columns, _BLOCK_COLUMNS))](
        tables, expanded, tables.stride(0), columns, pages_per_block, block_columns=_BLOCK_COLUMNS
    )
    return expanded
