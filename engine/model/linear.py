"""Matrix products with weights that stay the same, kept in the form that the device multiplies fastest.

On CPUs that is oneDNN's blocked form. Of one thread's decode step of SmolLM2 (float32, AMD EPYC with AVX-512) it takes
the products from 46 ms to 33 at 1 row and from 78 to 43 at 8 rows, and it is no slower at hundreds. Its kernels are
made for 4 rows and more: fewer are filled up, which takes less time than computing them as they are. For every number
of rows it compiles one more kernel, of half a megabyte, and keeps a thousand of them: so there are few such numbers,
and what lies between is filled up too.

Weights that can be narrowed without loss are kept narrow besides, for products of few rows: 13 ms at 1 row and 28 at 8
then, for a quarter more memory, or half more where files hold 16 bits. Long inputs are bound by computing, and stay
with oneDNN.
"""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from torch import Tensor

from engine.kernels.narrow_product import MOST_ROWS, instruction_sets, narrow_product
from engine.kernels.narrow_weight import NarrowWeight, narrow

__all__ = ["Linear", "filled_rows"]

_MIN_ROWS = 4


class Linear:
    """``x @ weight.T + bias`` for ``x`` of ``[rows, in]``; the weight is ``[out, in]`` and need not be kept."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self._narrow = _narrowed(weight)
        self._packed = _is_packable(weight)
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight, _MIN_ROWS) if self._packed else weight
        self._bias = bias

    def __call__(self, rows: Tensor) -> Tensor:
        """``[rows, out]``."""
        if self._narrow is not None and len(rows) <= MOST_ROWS:
            product = narrow_product(rows, self._narrow)
            return product if self._bias is None else product.add_(self._bias)
        if not self._packed:
            return F.linear(rows, self._weight, self._bias)
        count = len(rows)
        if missing := filled_rows(count) - count:
            rows = F.pad(rows, (0, 0, 0, missing))
        product = torch.ops.mkldnn._linear_pointwise(rows, self._weight, self._bias, "none", [], "")
        return cast(Tensor, product)[:count]


def filled_rows(count: int) -> int:
    """How many rows are computed for ``count``: at most a sixteenth more, or a multiple of the fewest."""
    step = max(_MIN_ROWS, 1 << count.bit_length() >> 5)
    return -(-count // step) * step


def _narrowed(weight: Tensor) -> NarrowWeight | None:
    if weight.device.type != "cpu" or weight.dtype != torch.float32 or not weight.numel() or not instruction_sets():
        return None
    return narrow(weight)


def _is_packable(weight: Tensor) -> bool:
    available = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    if weight.device.type != "cpu" or not weight.numel() or not available:
        return False
    if weight.dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return weight.dtype == torch.float32
