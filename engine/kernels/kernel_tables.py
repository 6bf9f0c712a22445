"""Block tables for a kernel whose pages are smaller than what the cache allocates at once.

A block of ``page_size`` rows is then a run of neighbouring kernel pages, and the pool is viewed as so many more pages.
Slots are rows of the pool and stay as they are: only tables have to be told in kernel pages. It holds under DCP too,
where ``page_size`` is one rank's part of a block, whatever the interleave.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["kernel_tables", "kernel_tables_reference"]


def kernel_tables(tables: Tensor, *, pages_per_block: int) -> Tensor:
    """Tables of kernel pages: block ``b`` becomes pages ``[b * pages_per_block, (b + 1) * pages_per_block)``.

    Args:
        tables: block ids of each sequence in order, ``[batch, columns]``, int64.
        pages_per_block: kernel pages in a rank's page.

    Returns:
        ``[batch, columns * pages_per_block]``, int64.
    """
    if tables.is_cuda:
        from engine.kernels.kernel_tables_triton import kernel_tables_triton

        return kernel_tables_triton(tables, pages_per_block=pages_per_block)
    return kernel_tables_reference(tables, pages_per_block=pages_per_block)


def kernel_tables_reference(tables: Tensor, *, pages_per_block: int) -> Tensor:
    """`kernel_tables` in plain torch."""
    pages = torch.arange(pages_per_block, device=tables.device)
    return (tables.unsqueeze(-1) * pages_per_block + pages).flatten(1)
