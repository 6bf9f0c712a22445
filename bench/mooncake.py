"""Token ids for Mooncake-format traces, which name blocks by ids and tell no tokens."""

from __future__ import annotations

import hashlib

from router.trace.mooncake import BLOCK_TOKENS, TraceRow

__all__ = ["prompt_tokens"]


def prompt_tokens(row: TraceRow, *, seed: int) -> list[int]:
    """``input_length`` token ids: each hash id always stands for the same 512, all bytes, so in any vocabulary."""
    blocks = (hashlib.shake_128(b"%d:%d" % (seed, hash_id)).digest(BLOCK_TOKENS) for hash_id in row.hash_ids)
    return list(b"".join(blocks)[: row.input_length])
