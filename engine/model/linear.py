"""Matrix products with weights that stay the same, kept in the form that the device multiplies fastest.

On CPUs that is oneDNN's blocked form: at 8 rows it is about twice as fast as the plain matrix, at 1 row and at hundreds
it is no slower (AMD EPYC with AVX-512, float32, one thread). Elsewhere the plain matrix is kept.
"""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from torch import Tensor

__all__ = ["Linear"]


class Linear:
    """``x @ weight.T + bias`` for ``x`` of ``[rows, in]``; the weight is ``[out, in]`` and need not be kept."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self._packed = _is_packable(weight)
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight) if self._packed else weight
        self._bias = bias

    def __call__(self, rows: Tensor) -> Tensor:
        """``[rows, out]``."""
        if self._packed:
            product = torch.ops.mkldnn._linear_pointwise(rows, self._weight, self._bias, "none", [], "")
            return cast(Tensor, product)
        return F.linear(rows, self._weight, self._bias)


def _is_packable(weight: Tensor) -> bool:
    available = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    if weight.device.type != "cpu" or not weight.numel() or not available:
        return False
    if weight.dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return weight.dtype == torch.float32
