"""Float32 matrices in one or two bytes a weight, where that loses nothing.

Most models' weights lie on a coarser grid than float32: files hold bfloat16 or float16, or were quantized by blocks of
32 neighbours, each with a scale and an offset of its own (GGUF's Q4_0 to Q8_0). Whether and how a matrix can be
narrowed is found out from its values alone, so it does not matter what it was read from or joined of. Knows nothing of
products; the order of a narrow matrix in memory is narrow_product.c's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

import torch
from torch import Tensor

__all__ = ["Form", "NarrowWeight", "narrow", "widen"]

_PANEL = 16
"""Outputs that lie together; the last panel is filled up."""

_BLOCK = 32
"""Inputs that share a scale and an offset."""

_ROWS_AT_ONCE = 256
"""Looked at together: few enough to stay in a processor's caches."""

_GRIDS = ((15, True), (127, False), (8, False), (31, True), (16, False))
"""Steps from a block's lowest weight to its highest, or from zero to the one furthest from it, as GGUF's Q4_1, Q8_0,
Q4_0, Q5_1 and Q5_0 have them. A block uses the ends of its grid, so they say where the steps are."""


class Form(IntEnum):
    """What a weight is kept as; numbers are narrow_product.c's."""

    CODES = 0
    BFLOAT16 = 1
    FLOAT16 = 2


_DTYPES = {Form.BFLOAT16: torch.bfloat16, Form.FLOAT16: torch.float16}


@dataclass(frozen=True)
class NarrowWeight:
    """A matrix ``[outputs, inputs]``. Weights of form CODES are ``code * scale + offset``, rounded to float32."""

    form: Form
    outputs: int
    panels: Tensor  # [panels, inputs, _PANEL], int8 or the form's dtype
    grids: Tensor | None = None  # [panels, blocks, (scale, offset), _PANEL], float16; of CODES only

    @property
    def nbytes(self) -> int:
        """Memory that it takes."""
        return self.panels.nbytes + (0 if self.grids is None else self.grids.nbytes)


def narrow(weight: Tensor) -> NarrowWeight | None:
    """``weight`` ``[outputs, inputs]``, float32, in the fewest bytes that hold all of it; None if that is all four."""
    if (coded := _coded(weight)) is not None:
        return coded
    for form, dtype in _DTYPES.items():
        if all(torch.equal(rows.to(dtype).float(), rows) for rows in torch.split(weight, _ROWS_AT_ONCE)):
            return NarrowWeight(form, len(weight), _panels(weight.to(dtype)))
    return None


def widen(weight: NarrowWeight) -> Tensor:
    """The matrix ``[outputs, inputs]`` that was narrowed."""
    values = _rows(weight.panels).float()
    if weight.grids is not None:
        scales, offsets = _rows(weight.grids).float().repeat_interleave(_BLOCK, dim=1).unbind(-1)
        values = values * scales + offsets
    return values[: weight.outputs]


def _coded(weight: Tensor) -> NarrowWeight | None:
    if weight.shape[1] % _BLOCK:
        return None
    codes, grids = [], []
    for rows in torch.split(weight, _ROWS_AT_ONCE):
        found = next(_on_grids(rows.view(len(rows), -1, _BLOCK)), None)
        if found is None:
            return None
        codes.append(found[0])
        grids.append(found[1])
    return NarrowWeight(Form.CODES, len(weight), _panels(torch.cat(codes)), _panels(torch.cat(grids)))


def _on_grids(blocks: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """All codes ``[rows, inputs]`` and grids ``[rows, blocks, 2]`` that are ``blocks`` ``[rows, blocks, _BLOCK]``."""
    highest, lowest = blocks.amax(-1, keepdim=True), blocks.amin(-1, keepdim=True)
    for steps, has_offset in _GRIDS:
        offset = lowest if has_offset else torch.zeros_like(lowest)
        scale = (torch.maximum(highest - offset, offset - lowest) / steps).half().float()
        codes = ((blocks - offset) / scale).round().nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
        grid = torch.cat([scale, offset], dim=-1).half()
        if torch.equal(codes * scale + grid[..., 1:].float(), blocks):
            yield codes.to(torch.int8).flatten(1), grid


def _panels(rows: Tensor) -> Tensor:
    """``[outputs, n, ...]`` as ``[panels, n, ..., _PANEL]``."""
    missing = -len(rows) % _PANEL
    filled = torch.cat([rows, rows.new_zeros(missing, *rows.shape[1:])]) if missing else rows
    return filled.view(-1, _PANEL, *rows.shape[1:]).movedim(1, -1).contiguous()


def _rows(panels: Tensor) -> Tensor:
    """What `_panels` was given, filled up."""
    return panels.movedim(-1, 1).flatten(0, 1)
