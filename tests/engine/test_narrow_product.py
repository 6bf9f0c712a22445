"""Weights in one or two bytes: nothing is lost, and products are those of the wide weights."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import gguf
import pytest
import torch
from engine_process import ROOT
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from engine.kernels import narrow_product as kernel
from engine.kernels.narrow_product import MOST_ROWS, instruction_sets, narrow_product, narrow_product_reference
from engine.kernels.narrow_weight import Form, narrow, widen
from engine.model.linear import Linear

BLOCK = 32
QUANTIZED = [gguf.GGMLQuantizationType[name] for name in ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")]
compiled = pytest.mark.skipif(not instruction_sets(), reason="the core was not compiled here, or has no AVX2 to run on")


def drawn(outputs: int, inputs: int, *, seed: int = 0) -> Tensor:
    """With a block of zeros and one of equal weights, where there are blocks."""
    weight = torch.randn(outputs, inputs, generator=torch.Generator().manual_seed(seed))
    weight[-1, :BLOCK] = 0.0
    weight[0, :BLOCK] = weight[0, 0]
    return weight


def quantized(weight: Tensor, kind: gguf.GGMLQuantizationType) -> Tensor:
    return torch.from_numpy(gguf.dequantize(gguf.quantize(weight.numpy(), kind), kind))


def narrowable(form: Form, outputs: int, inputs: int, *, seed: int) -> Tensor:
    weight = drawn(outputs, inputs, seed=seed)
    match form:
        case Form.CODES:
            return quantized(weight, QUANTIZED[seed % len(QUANTIZED)])
        case Form.BFLOAT16:
            return (weight * 1e6).bfloat16().float()  # too large for float16, and too coarse to be taken for it
        case Form.FLOAT16:
            return weight.half().float()


@pytest.mark.parametrize("kind", QUANTIZED, ids=lambda kind: kind.name)
def test_quantized_weights_are_kept_in_a_byte_each(kind: gguf.GGMLQuantizationType) -> None:
    """In rows of several kinds too, as projections that were put together have them."""
    weight = torch.cat([quantized(drawn(256, 96), kind), quantized(drawn(21, 96), QUANTIZED[0])])
    found = narrow(weight)
    assert found is not None
    assert found.form is Form.CODES
    assert torch.equal(widen(found), weight)
    assert found.nbytes < 0.30 * weight.nbytes


@pytest.mark.parametrize("form", [Form.BFLOAT16, Form.FLOAT16])
@pytest.mark.parametrize(("outputs", "inputs"), [(2, 1), (16, 32), (300, 45)])
def test_weights_of_two_bytes_keep_them(form: Form, outputs: int, inputs: int) -> None:
    weight = narrowable(form, outputs, inputs, seed=1)
    found = narrow(weight)
    assert found is not None
    assert found.form is form
    assert torch.equal(widen(found), weight)


@pytest.mark.parametrize("place", [(0, 0), (299, 63)])
def test_one_weight_that_needs_four_bytes_keeps_all_wide(place: tuple[int, int]) -> None:
    for weight in (quantized(drawn(300, 64), QUANTIZED[1]), drawn(300, 64).bfloat16().float()):
        assert narrow(weight) is not None
        weight[place] = 1 / 3
        assert narrow(weight) is None


def test_weights_that_are_no_numbers_are_kept_wide() -> None:
    weight = torch.zeros(16, 32)
    weight[3, 3] = float("nan")
    assert narrow(weight) is None


@compiled
@settings(deadline=None)
@given(
    form=st.sampled_from(Form),
    rows=st.integers(0, MOST_ROWS + 1),
    outputs=st.integers(1, 50),
    inputs=st.integers(1, 70),
    seed=st.integers(0, 2**32),
)
def test_products_are_those_of_the_wide_weights(form: Form, rows: int, outputs: int, inputs: int, seed: int) -> None:
    weight = narrowable(form, outputs, inputs * BLOCK if form is Form.CODES else inputs, seed=seed)
    found = narrow(weight)
    assert found is not None
    states = torch.randn(rows, weight.shape[1], generator=torch.Generator().manual_seed(seed))
    expected = narrow_product_reference(states, found)
    for instruction_set in instruction_sets():
        product = narrow_product(states, found, instruction_set=instruction_set)
        torch.testing.assert_close(product, expected, atol=1e-4 * float(weight.abs().max()), rtol=1e-4)
        for state, row in zip(states, product, strict=True):
            assert torch.equal(narrow_product(state[None], found, instruction_set=instruction_set)[0], row)


@compiled
def test_states_need_not_lie_together() -> None:
    found = narrow(narrowable(Form.FLOAT16, 20, 24, seed=0))
    assert found is not None
    states = torch.randn(3, 40, generator=torch.Generator().manual_seed(0))[:, 7:31]
    torch.testing.assert_close(narrow_product(states, found), narrow_product_reference(states, found))


@compiled
@pytest.mark.parametrize("form", Form)
def test_a_linear_says_the_same_with_and_without_the_core(form: Form, monkeypatch: pytest.MonkeyPatch) -> None:
    weight, bias = narrowable(form, 40, 64, seed=2), torch.arange(40.0)
    linear = Linear(weight, bias)
    monkeypatch.setattr(kernel, "_core", None)
    plain = Linear(weight, bias)
    monkeypatch.undo()
    for count in (1, 2, MOST_ROWS, MOST_ROWS + 1):
        states = torch.randn(count, 64, generator=torch.Generator().manual_seed(count))
        torch.testing.assert_close(linear(states), plain(states), atol=1e-4 * float(weight.abs().max()), rtol=1e-4)


def test_a_compiler_that_fails_fails_no_install(tmp_path: Path) -> None:
    build = ["build_ext", "--build-lib", str(tmp_path / "lib"), "--build-temp", str(tmp_path / "temp")]
    done = subprocess.run(
        [sys.executable, "setup.py", *build], cwd=ROOT, env=os.environ | {"CC": "false"}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "failed" in done.stderr
