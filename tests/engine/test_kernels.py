"""Kernels: the torch references against plain definitions, the Triton kernels against the references."""

from __future__ import annotations

import json
import math
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from contract.geometry import Geometry
from engine.kernels.extend_attention import extend_attention
from engine.kernels.kernel_tables import kernel_tables
from engine.kernels.kv_store import store_kv
from engine.kernels.lse_merge import merge, merge_reference
from engine.kernels.paged_decode import paged_decode
from engine.kernels.slot_mapping import NOT_HERE

HERE = Path(__file__).parent
LSE_CASES = json.loads((HERE.parent / "golden" / "vllm-dcp-math.json").read_text())["lse_combine"]


def naive_attention(query: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """One query ``[heads, dim]`` over ``[tokens, kv_heads, dim]``, in float64; output and LSE of each head."""
    group = query.shape[0] // keys.shape[1]
    keys, values = (states.double().repeat_interleave(group, dim=1) for states in (keys, values))
    scores = torch.einsum("hd,thd->ht", query.double(), keys) / math.sqrt(query.shape[1])
    weights = scores.exp()
    total = weights.sum(dim=1)
    output = torch.einsum("ht,thd->hd", weights, values) / total[:, None]
    empty = len(keys) == 0
    return torch.zeros_like(output).float() if empty else output.float(), total.log().float()


def sequence(pages: Tensor, table: Tensor, length: int) -> Tensor:
    return pages[table].flatten(0, 1)[:length]


@pytest.mark.parametrize("case", LSE_CASES)
def test_merging_follows_the_recorded_cases_nan_and_infinities_included(case: dict[str, Any]) -> None:
    base = 1.0 if case["lse_base_e"] else math.log(2)  # the recordings in base 2, turned into natural logarithms
    output, lse = merge(torch.tensor(case["outputs"]), torch.tensor(case["lses"]) * base)
    torch.testing.assert_close(output, torch.tensor(case["combined"]))
    torch.testing.assert_close(lse, torch.tensor(case["global_lse"]) * base)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=5).filter(any), st.integers(0, 2**32))
def test_merged_shards_are_the_attention_over_all_of_them(sizes: list[int], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    query = torch.randn(4, 8, generator=generator)
    keys, values = torch.randn(2, sum(sizes), 2, 8, generator=generator)
    shards = zip(keys.split(sizes), values.split(sizes), strict=True)
    outputs, lses = zip(*(naive_attention(query, *shard) for shard in shards), strict=True)
    output, lse = merge_reference(torch.stack(outputs).unsqueeze(1), torch.stack(lses).unsqueeze(1))
    torch.testing.assert_close((output[0], lse[0]), naive_attention(query, keys, values))


@given(st.lists(st.integers(0, 40), min_size=1, max_size=6), st.sampled_from([1, 3, 16]), st.integers(0, 2**32))
def test_paged_decode_attends_each_query_to_its_own_pages_up_to_its_length(
    lengths: list[int], page_size: int, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    columns = max(1, -(-max(lengths) // page_size))
    pages = columns * len(lengths)
    keys, values = torch.randn(2, pages, page_size, 2, 8, generator=generator)
    tables = torch.randperm(pages, generator=generator).view(len(lengths), columns)
    queries = torch.randn(len(lengths), 4, 8, generator=generator)
    outputs, lses = paged_decode(queries, keys, values, tables, torch.tensor(lengths))
    for query, table, length, *actual in zip(queries, tables, lengths, outputs, lses, strict=True):
        expected = naive_attention(query, sequence(keys, table, length), sequence(values, table, length))
        torch.testing.assert_close(tuple(actual), expected)


@given(
    st.integers(0, 20),
    st.lists(st.booleans(), min_size=1, max_size=30),
    st.sampled_from([1, 3, 16]),
    st.integers(0, 2**32),
)
def test_extend_attention_shows_each_query_the_keys_that_are_visible_to_it(
    context: int, owned: list[bool], page_size: int, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    visible = context + torch.tensor(owned).cumsum(0)
    longest = int(visible[-1])
    pages = max(1, -(-longest // page_size)) + 1  # the table may be longer than needed
    keys, values = torch.randn(2, pages, page_size, 2, 8, generator=generator)
    table = torch.randperm(pages, generator=generator)
    queries = torch.randn(len(owned), 4, 8, generator=generator)
    outputs, lses = extend_attention(queries, keys, values, table, visible, longest=longest)
    for query, length, *actual in zip(queries, visible.tolist(), outputs, lses, strict=True):
        expected = naive_attention(query, sequence(keys, table, length), sequence(values, table, length))
        torch.testing.assert_close(tuple(actual), expected)


def test_storing_writes_the_rows_that_have_a_slot_and_no_others() -> None:
    keys, values = torch.randn(2, 4, 2, 8)
    rows = torch.zeros(2, 6, 2, 8)
    store_kv(keys, values, key_rows=rows[0], value_rows=rows[1], slots=torch.tensor([5, NOT_HERE, 0, NOT_HERE]))
    expected = torch.zeros(2, 6, 2, 8)
    for row, token in ((5, 0), (0, 2)):
        expected[0, row], expected[1, row] = keys[token], values[token]
    assert torch.equal(rows, expected)


@given(st.integers(1, 3), st.integers(1, 4), st.integers(1, 3), st.integers(1, 3), st.integers(0, 2**32))
def test_tokens_are_found_in_kernel_pages_where_blocks_of_several_pages_were_allocated(
    interleave: int, runs: int, pages_per_block: int, dcp_size: int, seed: int
) -> None:
    kernel = Geometry(page_size=runs * interleave, dcp_size=dcp_size, interleave=interleave)
    allocated = Geometry(page_size=kernel.page_size * pages_per_block, dcp_size=dcp_size, interleave=interleave)
    blocks = torch.randperm(9, generator=torch.Generator().manual_seed(seed))[:3]
    pages = kernel_tables(blocks.unsqueeze(0), pages_per_block=pages_per_block)[0]
    for position in range(3 * allocated.block_width):
        slot = blocks[allocated.block_index(position)] * allocated.page_size + allocated.local_offset(position)
        assert slot == pages[kernel.block_index(position)] * kernel.page_size + kernel.local_offset(position)
        assert allocated.owner(position) == kernel.owner(position)


def test_attention_over_kernel_pages_is_attention_over_the_blocks_that_they_make_up() -> None:
    keys, values = torch.randn(2, 5, 6, 2, 8)  # 5 blocks of 6 rows, 2 kernel pages of 3 each
    queries, blocks, lengths = torch.randn(2, 4, 8), torch.tensor([[4, 1], [2, 0]]), torch.tensor([8, 3])
    pages = kernel_tables(blocks, pages_per_block=2)
    over_pages = paged_decode(queries, keys.view(10, 3, 2, 8), values.view(10, 3, 2, 8), pages, lengths)
    torch.testing.assert_close(over_pages, paged_decode(queries, keys, values, blocks, lengths))


def run_script(name: str, *arguments: str, **environment: str) -> str:
    """A fresh process: whether Triton interprets or compiles is decided when it is imported."""
    inherited = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, str(HERE / name), *arguments],
        env={**inherited, "OMP_NUM_THREADS": "1", **environment},
        cwd=HERE.parent.parent,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_triton_kernels_agree_with_their_references_on_fresh_random_inputs() -> None:
    pytest.importorskip("triton", reason="Triton has no wheel for this platform")
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    assert "all kernels agree" in run_script("interpreted_kernels.py", str(seed), TRITON_INTERPRET="1")


def test_triton_kernels_compile_for_hopper(tmp_path: Path) -> None:
    pytest.importorskip("triton", reason="Triton has no wheel for this platform")
    assert "all kernels compile" in run_script("compiled_kernels.py", TRITON_CACHE_DIR=str(tmp_path))
