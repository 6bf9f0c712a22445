"""Writing a step's new keys and values to the slots of one rank's cache."""

from __future__ import annotations

from torch import Tensor

__all__ = ["store_kv", "store_kv_reference"]


def store_kv(keys: Tensor, values: Tensor, *, key_rows: Tensor, value_rows: Tensor, slots: Tensor) -> None:
    """Store what has a slot on this rank, and nothing else; changes ``key_rows`` and ``value_rows``.

    Args:
        keys: ``[tokens, kv_heads, head_dim]``.
        values: as ``keys``.
        key_rows: all key rows of a layer, ``[slots of the pool, kv_heads, head_dim]``.
        value_rows: as ``key_rows``.
        slots: the row of each token, ``[tokens]``, int64; below 0 where another rank stores it. No slot comes twice.
    """
    if keys.is_cuda:
        from engine.kernels.kv_store_triton import store_kv_triton

        store_kv_triton(keys, values, key_rows=key_rows, value_rows=value_rows, slots=slots)
    else:
        store_kv_reference(keys, values, key_rows=key_rows, value_rows=value_rows, slots=slots)


def store_kv_reference(keys: Tensor, values: Tensor, *, key_rows: Tensor, value_rows: Tensor, slots: Tensor) -> None:
    """`store_kv` in plain torch."""
    here = slots >= 0
    if not here.all():
        own = here.nonzero().squeeze(1)
        keys, values, slots = (each.index_select(0, own) for each in (keys, values, slots))
    key_rows.index_copy_(0, slots, keys)
    value_rows.index_copy_(0, slots, values)
