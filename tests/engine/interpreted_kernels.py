"""Run by test_kernels in a process with TRITON_INTERPRET=1: every kernel against its reference, on the seed given."""

from __future__ import annotations

import random
import sys

import torch

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

HALF = {"rtol": 2e-3, "atol": 2e-3}  # float16 keeps 11 bits of a weight


def check_merge(*, ranks: int, tokens: int, heads: int, head_dim: int) -> None:
    packed = torch.randn(ranks, tokens, heads, head_dim + 1) * 3  # packed as the collective delivers it: strided views
    outputs, lses = packed[..., :-1], packed[..., -1]
    for guarded in (float("-inf"), float("inf"), float("nan")):
        mask = torch.rand(lses.shape) < 0.2
        lses[mask] = guarded
        outputs[mask] = float("nan")
    lses[:, 0, 0] = float("-inf")  # all ranks empty
    torch.testing.assert_close(merge_triton(outputs, lses), merge_reference(outputs, lses))


def check_slot_mapping(geometry: Geometry, *, tokens: int) -> None:
    """Any positions of any blocks, on every rank; some rows of no block."""
    positions = torch.randint(0, 5 * geometry.block_width, (tokens,))
    blocks = torch.randint(0, 50, (tokens,))
    blocks[torch.rand(tokens) < 0.1] = NOT_HERE
    places = range(geometry.block_width)
    for rank in range(geometry.dcp_size):
        rows = [geometry.local_offset(p) if geometry.owner(p) == rank else NOT_HERE for p in places]
        arguments = (positions, blocks, torch.tensor(rows))
        slots = slot_mapping_triton(*arguments, page_size=geometry.page_size)
        assert torch.equal(slots, slot_mapping_reference(*arguments, page_size=geometry.page_size))


def check_kv_store(*, tokens: int, kv_heads: int, head_dim: int) -> None:
    qkv = torch.randn(tokens, 4 * kv_heads, head_dim)  # keys and values are slices of one projection: strided views
    keys, values = qkv[:, kv_heads : 2 * kv_heads], qkv[:, 3 * kv_heads :]
    slots = torch.randperm(3 * tokens)[:tokens]
    slots[torch.rand(tokens) < 0.5] = NOT_HERE
    pools = []
    for store in (store_kv_triton, store_kv_reference):
        rows = torch.zeros(2, 3 * tokens, kv_heads, head_dim)
        store(keys, values, key_rows=rows[0], value_rows=rows[1], slots=slots)
        pools.append(rows)
    assert torch.equal(*pools)


def check_kernel_tables(*, batch: int, columns: int, pages_per_block: int) -> None:
    tables = torch.randint(0, 1000, (batch, columns + 2))[:, :columns]  # rows need not be next to each other
    expanded = kernel_tables_triton(tables, pages_per_block=pages_per_block)
    assert torch.equal(expanded, kernel_tables_reference(tables, pages_per_block=pages_per_block))


def check_paged_decode(
    *, page_size: int, kv_heads: int, group: int, head_dim: int, spans: int | None = None, half: bool = False
) -> None:
    lengths = [0, 1, 32, random.randrange(33, 80)]  # an empty shard, a short one, a whole tile and more
    random.shuffle(lengths)
    columns = -(-max(lengths) // page_size)
    pages = columns * len(lengths)
    dtype = torch.float16 if half else torch.float32
    keys, values = torch.randn(2, pages, page_size, kv_heads, head_dim, dtype=dtype)
    tables = torch.randperm(pages).view(len(lengths), columns)
    queries = torch.randn(len(lengths), kv_heads * group, head_dim, dtype=dtype)
    output, lse = paged_decode_triton(queries, keys, values, tables, torch.tensor(lengths), spans=spans)
    assert output.dtype == dtype
    expected = paged_decode_reference(queries.float(), keys.float(), values.float(), tables, torch.tensor(lengths))
    torch.testing.assert_close((output.float(), lse), expected, **(HALF if half else {}))


def check_extend_attention(
    *, page_size: int, kv_heads: int, group: int, head_dim: int, context: int, tokens: int, half: bool = False
) -> None:
    """A shard's view of a chunk: about half of the new tokens are its own; without a context, the first see none."""
    visible = context + (torch.rand(tokens) < 0.5).cumsum(0)
    if context == 0:
        visible -= visible[0].clone()
    longest = int(visible[-1])
    pages = max(1, -(-longest // page_size)) + 1  # the table may be longer than needed
    dtype = torch.float16 if half else torch.float32
    keys, values = torch.randn(2, pages, page_size, kv_heads, head_dim, dtype=dtype)
    table = torch.randperm(pages)
    queries = torch.randn(tokens, kv_heads * group, head_dim, dtype=dtype)
    output, lse = extend_attention_triton(queries, keys, values, table, visible)
    assert output.dtype == dtype
    expected = extend_attention_reference(
        queries.float(), keys.float(), values.float(), table, visible, longest=longest
    )
    torch.testing.assert_close((output.float(), lse), expected, **(HALF if half else {}))


def main() -> None:
    seed = int(sys.argv[1])
    random.seed(seed)
    torch.manual_seed(seed)
    check_merge(ranks=1, tokens=2, heads=1, head_dim=8)
    check_merge(ranks=2, tokens=3, heads=2, head_dim=16)
    check_merge(ranks=4, tokens=5, heads=3, head_dim=5)
    check_slot_mapping(Geometry(page_size=3, dcp_size=2), tokens=300)
    check_slot_mapping(Geometry(page_size=6, dcp_size=3, interleave=2), tokens=40)
    check_slot_mapping(Geometry(page_size=1, dcp_size=1), tokens=1)
    check_kv_store(tokens=1, kv_heads=2, head_dim=16)
    check_kv_store(tokens=7, kv_heads=3, head_dim=5)
    check_kernel_tables(batch=2, columns=3, pages_per_block=4)
    check_kernel_tables(batch=1, columns=90, pages_per_block=3)
    check_paged_decode(page_size=3, kv_heads=2, group=2, head_dim=16)
    check_paged_decode(page_size=1, kv_heads=1, group=3, head_dim=5)
    check_paged_decode(page_size=16, kv_heads=1, group=17, head_dim=8, spans=1)
    check_paged_decode(page_size=3, kv_heads=2, group=3, head_dim=24, spans=3, half=True)
    check_extend_attention(page_size=3, kv_heads=2, group=2, head_dim=16, context=random.randrange(1, 90), tokens=40)
    check_extend_attention(page_size=1, kv_heads=1, group=3, head_dim=5, context=0, tokens=random.randrange(22, 90))
    check_extend_attention(page_size=16, kv_heads=2, group=1, head_dim=24, context=32, tokens=2, half=True)
    check_extend_attention(page_size=2, kv_heads=1, group=2, head_dim=8, context=0, tokens=1)  # an empty shard
    print("all kernels agree")


if __name__ == "__main__":
    main()
