"""`engine.kernels.slot_mapping` as a Triton kernel: one program maps a run of tokens."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = ["slot_mapping_kernel", "slot_mapping_triton"]

_BLOCK_TOKENS = 256


@triton.jit  # type: ignore[untyped-decorator]
def slot_mapping_kernel(  # type: ignore[no-untyped-def]
    positions, blocks, rows, slots, num_tokens, width, page_size, block_tokens: tl.constexpr
):
    """Program ``run of block_tokens tokens``. ``width`` is the length of ``rows``."""
    tokens = tl.program_id(0) * block_tokens + tl.arange(0, block_tokens)
    there = tokens < num_tokens
    position = tl.load(positions + tokens, mask=there, other=0)
    block = tl.load(blocks + tokens, mask=there, other=-1)
    row = tl.load(rows + position % width, mask=there, other=-1)
    slot = tl.where((row >= 0) & (block >= 0), block * page_size + row, -1)
    tl.store(slots + tokens, slot, mask=there)


def slot_mapping_triton(positions: Tensor, blocks: Tensor, rows: Tensor, *, page_size: int) -> Tensor:
    """`engine.kernels.slot_mapping.slot_mapping` on the GPU; same arguments and results. Tensors are contiguous."""
    slots = torch.empty_like(positions)
    slot_mapping_kernel[(triton.cdiv(len(positions), _BLOCK_TOKENS),)](
        positions, blocks, rows, slots, len(positions), len(rows), page_size, block_tokens=_BLOCK_TOKENS
    )
    return slots
