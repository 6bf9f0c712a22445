"""`engine.kernels.lse_merge` as a Triton kernel: one program merges all ranks' parts of one token and head."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = ["merge_kernel", "merge_triton"]


@triton.jit  # type: ignore[untyped-decorator]
def merge_kernel(  # type: ignore[no-untyped-def]
    outputs,
    lses,
    merged,
    merged_lse,
    outputs_rank_stride,
    outputs_token_stride,
    outputs_head_stride,
    lses_rank_stride,
    lses_token_stride,
    lses_head_stride,
    num_ranks,
    num_heads,
    head_dim: tl.constexpr,
    block_dim: tl.constexpr,
):
    """Program ``(token, head)``. ``merged`` and ``merged_lse`` are contiguous, ``head_dim`` is dense everywhere.

    Like any online softmax: the running sum is kept relative to the largest LSE so far, so one pass is enough.
    """
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    dims = tl.arange(0, block_dim)
    inside = dims < head_dim
    outputs += token * outputs_token_stride + head * outputs_head_stride
    lses += token * lses_token_stride + head * lses_head_stride

    # The smallest finite float32 stands for "nothing yet": it keeps -inf minus -inf, which is NaN, out of the sums.
    largest = -3.4028234663852886e38
    total = 0.0
    acc = tl.zeros([block_dim], dtype=tl.float32)
    for rank in range(num_ranks):
        lse = tl.load(lses + rank * lses_rank_stride).to(tl.float32)
        lse = tl.where((lse != lse) | (lse == float("inf")), float("-inf"), lse)
        part = tl.load(outputs + rank * outputs_rank_stride + dims, mask=inside, other=0.0).to(tl.float32)
        new_largest = tl.maximum(largest, lse)
        weight = tl.exp(lse - new_largest)
        shrink = tl.exp(largest - new_largest)
        part = tl.where(weight > 0, part, 0.0)  # 0 * NaN is NaN
        acc = acc * shrink + part * weight
        total = total * shrink + weight
        largest = new_largest

    row = token * num_heads + head
    empty = total == 0.0
    safe_total = tl.where(empty, 1.0, total)
    tl.store(merged + row * head_dim + dims, acc / safe_total, mask=inside)
    tl.store(merged_lse + row, tl.where(empty, float("-inf"), largest + tl.log(safe_total)))


def merge_triton(outputs: Tensor, lses: Tensor) -> tuple[Tensor, Tensor]:
    """`engine.kernels.lse_merge.merge` on the GPU; same arguments and results."""
    ranks, tokens, heads, head_dim = outputs.shape
    assert outputs.stride(3) == 1, f"head_dim must be dense, its stride is {outputs.stride(3)}"
    merged = torch.empty((tokens, heads, head_dim), device=outputs.device, dtype=outputs.dtype)
    merged_lse = torch.empty((tokens, heads), device=lses.device, dtype=lses.dtype)
    merge_kernel[(tokens, heads)](
        outputs,
        lses,
        merged,
        merged_lse,
        *outputs.stride()[:3],
        *lses.stride(),
        ranks,
        heads,
        head_dim=head_dim,
        block_dim=triton.next_power_of_2(head_dim),
    )
    return merged, merged_lse
