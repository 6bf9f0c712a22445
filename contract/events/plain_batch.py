"""Event batches without anything unusual, read in one pass by compiled code where that was built.

What such a batch may hold is written in ``_wire.c``; any other is left to the tolerant decoder, which reads these too.
"""

from __future__ import annotations

from array import array

from contract.events.model import AllBlocksCleared, BlockRemoved, BlockStored, EventBatch
from contract.keys_core import PLAIN_ONLY

__all__ = ["read_plain_batch"]

try:
    from contract.events import _wire
except ImportError:
    _MAKERS = None
else:
    _MAKERS = (BlockStored, _wire.STORED, BlockRemoved, _wire.REMOVED, AllBlocksCleared(), array, "I")


def read_plain_batch(payload: bytes) -> EventBatch | None:
    """A plain batch; None where the payload is any other, or nothing was built that could tell."""
    if _MAKERS is None or PLAIN_ONLY:
        return None
    found = _wire.read_batch(payload, _MAKERS)
    return None if found is None else EventBatch(ts=found[0], events=found[1], dp_rank=found[2])
