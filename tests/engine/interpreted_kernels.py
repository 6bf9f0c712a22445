"""Run by test_kernels in a process with TRITON_INTERPRET=1: every kernel against its reference, on the seed given."""

from __future__ import annotations

import random
import sys

import torch

from engine.kernels.lse_merge import merge_reference
from engine.kernels.lse_merge_triton import merge_triton
from engine.kernels.paged_decode import paged_decode_reference
from engine.kernels.paged_decode_triton import paged_decode_triton


def check_merge(*, ranks: int, tokens: int, heads: int, head_dim: int) -> None:
    packed = torch.randn(ranks, tokens, heads, head_dim + 1) * 3  # packed as the collective delivers it: strided views
    outputs, lses = packed[..., :-1], packed[..., -1]
    for guarded in (float("-inf"), float("inf"), float("nan")):
        mask = torch.rand(lses.shape) < 0.2
        lses[mask] = guarded
        outputs[mask] = float("nan")
    lses[:, 0, 0] = float("-inf")  # all ranks empty
    torch.testing.assert_close(merge_triton(outputs, lses), merge_reference(outputs, lses))


def check_paged_decode(*, page_size: int, kv_heads: int, group: int, head_dim: int) -> None:
    lengths = [0, 1, 31, 32, 33, random.randrange(34, 80)]
    random.shuffle(lengths)
    columns = -(-max(lengths) // page_size)
    pages = columns * len(lengths)
    keys, values = torch.randn(2, pages, page_size, kv_heads, head_dim)
    tables = torch.randperm(pages).view(len(lengths), columns)
    queries = torch.randn(len(lengths), kv_heads * group, head_dim)
    arguments = (queries, keys, values, tables, torch.tensor(lengths))
    torch.testing.assert_close(paged_decode_triton(*arguments), paged_decode_reference(*arguments))


def main() -> None:
    seed = int(sys.argv[1])
    random.seed(seed)
    torch.manual_seed(seed)
    check_merge(ranks=1, tokens=2, heads=1, head_dim=8)
    check_merge(ranks=2, tokens=3, heads=2, head_dim=16)
    check_merge(ranks=4, tokens=5, heads=3, head_dim=5)
    check_paged_decode(page_size=3, kv_heads=2, group=2, head_dim=16)
    check_paged_decode(page_size=1, kv_heads=1, group=3, head_dim=5)
    check_paged_decode(page_size=16, kv_heads=2, group=1, head_dim=8)
    print("all kernels agree")


if __name__ == "__main__":
    main()
