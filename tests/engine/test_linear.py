"""Products with weights that stay: the same for every number of rows, which are filled up to few numbers."""

from __future__ import annotations

import pytest
import torch

from engine.model.linear import Linear, filled_rows


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("has_bias", [False, True])
def test_products_are_torchs_whatever_the_number_of_rows(dtype: torch.dtype, has_bias: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    weight, bias = (torch.randn(shape, generator=generator).to(dtype) for shape in ((24, 40), (24,)))
    linear = Linear(weight, bias if has_bias else None)
    tolerance = 1e-4 if dtype == torch.float32 else 0.1
    for count in (0, 1, 3, 4, 5, 8, 9, 130, 261):
        rows = torch.randn(count, 40, generator=generator).to(dtype)
        expected = torch.nn.functional.linear(rows, weight, bias if has_bias else None)
        torch.testing.assert_close(linear(rows), expected, atol=tolerance, rtol=tolerance)


def test_rows_are_filled_up_to_few_numbers_and_by_few() -> None:
    assert len({filled_rows(count) for count in range(1, 2049)}) < 100
    for count in range(1, 2049):
        assert count <= filled_rows(count) < count + max(4, count / 16)
        assert filled_rows(filled_rows(count)) == filled_rows(count)
