"""Products of a few rows with weights that are kept narrow, and widened to float32 in registers.

A decode step takes as long as its weights take to be read, and these are a quarter or half of the bytes. Products are
of float32 with float32, as they would be with the wide weights. The core, narrow_product.c, is compiled at install
where there is a compiler; where there is none, products are made with wide weights only.
"""

from __future__ import annotations

import torch.nn.functional as F  # noqa: N812 - its usual name
from torch import Tensor

from contract.keys_core import PLAIN_ONLY
from engine.kernels.narrow_weight import NarrowWeight, widen

try:
    from engine.kernels import _narrow_product as _core
except ImportError:  # never compiled, or a processor that it is not written for
    _core = None  # type: ignore[assignment]
if PLAIN_ONLY:
    _core = None  # type: ignore[assignment]

__all__ = ["MOST_ROWS", "instruction_sets", "narrow_product", "narrow_product_reference"]

MOST_ROWS = 8
"""From here on it is computing that takes the time, and wide weights are not slower."""


def instruction_sets() -> range:
    """Those of `narrow_product` that can be used here, best last."""
    return range(_core.SETS if _core is not None else 0)


def narrow_product(rows: Tensor, weight: NarrowWeight, *, instruction_set: int | None = None) -> Tensor:
    """``[rows, outputs]`` of ``rows`` ``[rows, inputs]``: ``rows @ widen(weight).T``, float32, on the CPU.

    The best of the `instruction_sets` is used, unless it is given. What comes out of a row does not depend on others.
    """
    panels, grids = weight.panels, weight.grids
    width = panels.shape[1]
    assert rows.shape[1] == width, f"rows of {rows.shape[1]} for a matrix of {width} inputs"
    rows = rows.float().contiguous()
    result = rows.new_empty(len(rows), weight.outputs)
    _core.product(
        _core.SETS - 1 if instruction_set is None else instruction_set,
        weight.form,
        rows.data_ptr(),
        panels.data_ptr(),
        0 if grids is None else grids.data_ptr(),
        result.data_ptr(),
        len(rows),
        width,
        weight.outputs,
    )
    return result


def narrow_product_reference(rows: Tensor, weight: NarrowWeight) -> Tensor:
    """`narrow_product` in plain torch."""
    return F.linear(rows, widen(weight))
