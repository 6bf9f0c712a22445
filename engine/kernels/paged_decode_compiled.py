"""Paged decode attention on CPUs by a core of our own, which reads pages where they lie and needs no masks.

Torch's operator wants keys and values gathered into one tensor, padded to the longest sequence and masked. At 8
sequences of 280 tokens (9 heads on 3, AMD EPYC) that takes 2.5 times as long. The core, paged_decode.c, is optional, as
that of `engine.kernels.narrow_product` is.
"""

from __future__ import annotations

import torch
from torch import Tensor

from contract.keys_core import PLAIN_ONLY

try:
    from engine.kernels import _paged_decode as _core
except ImportError:  # never compiled, or a processor that it is not written for
    _core = None  # type: ignore[assignment]
if PLAIN_ONLY:
    _core = None  # type: ignore[assignment]

__all__ = ["is_usable", "paged_decode_compiled"]

_LANES = 8


def is_usable(queries: Tensor, keys: Tensor) -> bool:
    """Whether there is a core for such tensors, as `paged_decode_compiled` takes them."""
    if _core is None or queries.device.type != "cpu" or queries.dtype != torch.float32:
        return False
    heads, head_dim = queries.shape[1:]
    return head_dim % _LANES == 0 and heads // keys.shape[2] <= _core.MOST_GROUP


def paged_decode_compiled(
    queries: Tensor, keys: Tensor, values: Tensor, tables: Tensor, lengths: Tensor
) -> tuple[Tensor, Tensor]:
    """`engine.kernels.paged_decode.paged_decode`; same arguments and results, where `is_usable` says so."""
    batch, heads, head_dim = queries.shape
    page_size, kv_heads = keys.shape[1:3]
    assert keys.is_contiguous(), "keys are not in one piece"
    assert values.is_contiguous(), "values are not in one piece"
    queries = (queries * head_dim**-0.5).contiguous()
    tables, lengths = tables.contiguous(), lengths.contiguous()
    outputs, lses = torch.empty_like(queries), queries.new_empty(batch, heads)
    _core.decode(
        queries.data_ptr(),
        keys.data_ptr(),
        values.data_ptr(),
        tables.data_ptr(),
        lengths.data_ptr(),
        outputs.data_ptr(),
        lses.data_ptr(),
        batch,
        kv_heads,
        heads // kv_heads,
        head_dim,
        page_size,
        tables.shape[1],
    )
    return outputs, lses
