"""`engine.kernels.kv_store` as a Triton kernel: one program stores keys and values of one token."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

__all__ = ["store_kv_kernel", "store_kv_triton"]


@triton.jit  # type: ignore[untyped-decorator]
def store_kv_kernel(  # type: ignore[no-untyped-def]
    keys,
    values,
    key_rows,
    value_rows,
    slots,
    keys_stride,
    values_stride,
    row_size: tl.constexpr,
    block_row: tl.constexpr,
):
    """Program ``token``. Rows of the pool are contiguous; those of the new tokens are dense, ``*_stride`` apart."""
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + token)
    items = tl.arange(0, block_row)
    stored = (items < row_size) & (slot >= 0)  # where another rank stores it, nothing is read either
    key = tl.load(keys + token * keys_stride + items, mask=stored)
    value = tl.load(values + token * values_stride + items, mask=stored)
    tl.store(key_rows + slot * row_size + items, key, mask=stored)
    tl.store(value_rows + slot * row_size + items, value, mask=stored)


def store_kv_triton(keys: Tensor, values: Tensor, *, key_rows: Tensor, value_rows: Tensor, slots: Tensor) -> None:
    """`engine.kernels.kv_store.store_kv` on the GPU; same arguments and effect."""
    row_size = key_rows[0].numel()
    assert key_rows.is_contiguous(), "the key rows of a layer must be contiguous"
    assert value_rows.is_contiguous(), "the value rows of a layer must be contiguous"
    for each in (keys, values):
        assert each[0].is_contiguous(), f"a token's heads must be dense, their strides are {each.stride()[1:]}"
    store_kv_kernel[(len(keys),)](
        keys,
        values,
        key_rows,
        value_rows,
        slots,
        keys.stride(0),
        values.stride(0),
        row_size=row_size,
        block_row=triton.next_power_of_2(row_size),
    )
