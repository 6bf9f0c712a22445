"""KV events: the values (``model``), and the wires they travel on (``decode``, ``encode``)."""

from contract.events.decode import EventDecodeError, decode_batch
from contract.events.encode import EventEncodeError, encode_batch
from contract.events.model import (
    AllBlocksCleared,
    BlockHash,
    BlockRemoved,
    BlockStored,
    Dialect,
    Event,
    EventBatch,
    Rejected,
    Tier,
    normalize_hash,
    tier_of,
)

__all__ = [
    "AllBlocksCleared",
    "BlockHash",
    "BlockRemoved",
    "BlockStored",
    "Dialect",
    "Event",
    "EventBatch",
    "EventDecodeError",
    "EventEncodeError",
    "Rejected",
    "Tier",
    "decode_batch",
    "encode_batch",
    "normalize_hash",
    "tier_of",
]
