"""Attention on CPUs by torch's flash operator: the references' outputs and log-sum-exps, empty shards included."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from engine.kernels.cpu_attention import extend_attention_cpu, paged_decode_cpu
from engine.kernels.extend_attention import extend_attention_reference
from engine.kernels.paged_decode import paged_decode_reference
from engine.kernels.paged_decode_compiled import is_usable, paged_decode_compiled

HEAD_DIM = 8
seeds = st.integers(0, 2**32)
shapes = st.tuples(st.sampled_from([1, 3, 16]), st.sampled_from([1, 2, 3]), st.sampled_from([1, 2, 3]))


class Pool(NamedTuple):
    """Pages in random order, with NaN wherever nothing may be read: in foreign pages and behind the last token."""

    keys: Tensor
    values: Tensor
    tables: Tensor


def pool(lengths: list[int], page_size: int, kv_heads: int, generator: torch.Generator) -> Pool:
    columns = max(1, -(-max(lengths) // page_size))
    count = len(lengths) * columns
    tables = torch.randperm(count, generator=generator).view(len(lengths), columns)
    keys, values = (torch.randn(count + 1, page_size, kv_heads, HEAD_DIM, generator=generator) for _ in range(2))
    keys[count] = values[count] = float("nan")
    return Pool(keys, values, tables)


def assert_same(found: tuple[Tensor, Tensor], expected: tuple[Tensor, Tensor]) -> None:
    torch.testing.assert_close(found[0], expected[0], atol=1e-5, rtol=0)
    torch.testing.assert_close(found[1], expected[1], atol=1e-5, rtol=0)


@given(lengths=st.lists(st.integers(0, 50), min_size=1, max_size=4), shape=shapes, seed=seeds)
def test_decode_is_what_the_reference_says(lengths: list[int], shape: tuple[int, int, int], seed: int) -> None:
    page_size, kv_heads, group = shape
    generator = torch.Generator().manual_seed(seed)
    keys, values, tables = pool(lengths, page_size, kv_heads, generator)
    queries = torch.randn(len(lengths), kv_heads * group, HEAD_DIM, generator=generator)
    arguments = queries, keys, values, tables, torch.tensor(lengths)
    expected = paged_decode_reference(*arguments)
    assert_same(paged_decode_cpu(*arguments), expected)
    if is_usable(queries, keys):
        assert_same(paged_decode_compiled(*arguments), expected)


@pytest.mark.skipif(not is_usable(torch.zeros(1, 1, 8), torch.zeros(1, 1, 1, 8)), reason="the core is not there")
@pytest.mark.parametrize("head_dim", [8, 64, 72, 136])
@pytest.mark.parametrize("scale", [1.0, 30.0])
def test_the_core_takes_heads_of_any_width_and_scores_of_any_size(head_dim: int, scale: float) -> None:
    """Lengths around the tiles that it computes; large scores leave one key that counts, wherever it stands."""
    generator = torch.Generator().manual_seed(head_dim)
    lengths = torch.tensor([1, 63, 64, 65, 200, 0])
    keys, values = (torch.randn(80, 16, 2, head_dim, generator=generator) for _ in range(2))
    tables = torch.randperm(80, generator=generator)[:78].view(6, 13)
    queries = scale * torch.randn(6, 6, head_dim, generator=generator)
    assert is_usable(queries, keys)
    found = paged_decode_compiled(queries, keys, values, tables, lengths)
    expected = paged_decode_reference(queries.double(), keys.double(), values.double(), tables, lengths)
    torch.testing.assert_close(found[0].double(), expected[0], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(found[1].double(), expected[1], atol=1e-4, rtol=1e-5)


def test_the_core_is_not_used_for_what_it_does_not_take() -> None:
    keys = torch.zeros(1, 1, 1, 12)
    assert not is_usable(torch.zeros(1, 1, 12), keys)
    assert not is_usable(torch.zeros(1, 1, 8, dtype=torch.bfloat16), torch.zeros(1, 1, 1, 8, dtype=torch.bfloat16))
    assert not is_usable(torch.zeros(1, 65, 8), torch.zeros(1, 1, 1, 8))


@given(tokens=st.integers(1, 40), context=st.integers(0, 40), shape=shapes, stride=st.integers(1, 3), seed=seeds)
def test_extend_is_what_the_reference_says(
    tokens: int, context: int, shape: tuple[int, int, int], stride: int, seed: int
) -> None:
    """``stride`` 1 is a whole cache, more is a shard that holds every so manieth token."""
    page_size, kv_heads, group = shape
    generator = torch.Generator().manual_seed(seed)
    visible = torch.arange(context + 1, context + tokens + 1) // stride
    longest = int(visible[-1])
    keys, values, tables = pool([longest], page_size, kv_heads, generator)
    queries = torch.randn(tokens, kv_heads * group, HEAD_DIM, generator=generator)
    arguments = queries, keys, values, tables[0], visible
    assert_same(
        extend_attention_cpu(*arguments, longest=longest), extend_attention_reference(*arguments, longest=longest)
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_formats_are_computed_in_wider_ones(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    keys, values, tables = pool([200, 31], 16, 2, generator)
    queries = torch.randn(2, 6, HEAD_DIM, generator=generator)
    lengths = torch.tensor([200, 31])
    exact = paged_decode_reference(queries, keys, values, tables, lengths)
    output, lse = paged_decode_cpu(queries.to(dtype), keys.to(dtype), values.to(dtype), tables, lengths)
    assert lse.dtype == torch.float32
    torch.testing.assert_close(output.float(), exact[0], atol=2e-2, rtol=0)
    torch.testing.assert_close(lse, exact[1], atol=2e-2, rtol=0)
