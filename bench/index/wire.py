"""The workload's events as vLLM's publishers write them."""

from __future__ import annotations

import msgspec

from bench.index.workload import Stored

__all__ = ["payload"]

_ENCODER = msgspec.msgpack.Encoder()


def payload(event: Stored, block: int) -> bytes:
    """One batch of one event, as tagged arrays: what every version of Dynamo reads."""
    stored = ["BlockStored", event.names, event.parent, event.tokens.tolist(), block, None, "GPU", None]
    return _ENCODER.encode([0.0, [stored], 0])
