"""A request inside the engine: what was asked, and how far it has come."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

__all__ = ["Namespace", "SamplingParams"]


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """How the next tokens are chosen; names and defaults are SGLang 0.5.23's.

    ``temperature`` 0 is greedy. ``seed`` makes a sampled answer repeatable. ``stop`` texts end the answer and are cut
    off it; ``stop_token_ids`` end it too.
    """

    max_new_tokens: int = 128
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    seed: int | None = None
    stop: Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False


class Namespace(msgspec.Struct, frozen=True):
    """Separates equal token ids in the cache: a tenant's ``extra_key``, a ``cache_salt``."""

    extra_key: str | None = None
    cache_salt: str | None = None
