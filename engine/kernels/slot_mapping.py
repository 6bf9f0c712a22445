"""Where the new tokens of a step go in one rank's share of the cache.

All ranks of a DCP group use the same block ids. Which of a block's tokens a rank stores, and in which row of its page,
is `contract.geometry`'s to say: it comes here as one lookup table over the places of a block, so that the formula has
one home.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["NOT_HERE", "slot_mapping", "slot_mapping_reference"]

NOT_HERE = -1
"""The row and the slot of a token that this rank does not store."""


def slot_mapping(positions: Tensor, blocks: Tensor, rows: Tensor, *, page_size: int) -> Tensor:
    """The pool row of every token, ``block * page_size + row of the page``, on the device where they are.

    Args:
        positions: of the tokens in their sequences, ``[tokens]``.
        blocks: ids of the logical blocks that hold them, ``[tokens]``; below 0 is a token that nobody stores.
        rows: row in this rank's page of each place of a block, or `NOT_HERE`, ``[block_width]``.
        page_size: rows of a page.

    Returns:
        ``[tokens]``, `NOT_HERE` for what other ranks store. All integers are int64.
    """
    if positions.is_cuda:
        from engine.kernels.slot_mapping_triton import slot_mapping_triton

        return slot_mapping_triton(positions, blocks, rows, page_size=page_size)
    return slot_mapping_reference(positions, blocks, rows, page_size=page_size)


def slot_mapping_reference(positions: Tensor, blocks: Tensor, rows: Tensor, *, page_size: int) -> Tensor:
    """`slot_mapping` in plain torch."""
    rows = rows[positions % len(rows)]
    return torch.where((rows >= 0) & (blocks >= 0), blocks * page_size + rows, NOT_HERE)
