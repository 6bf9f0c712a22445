"""A request as it enters and leaves the engine: what is asked, what comes back, and why it may be refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

__all__ = ["FinishReason", "Namespace", "Output", "RequestError", "SamplingParams"]

FinishReason = Literal["stop", "length", "abort"]


class RequestError(ValueError):
    """A request that this engine could never carry out; the message names the value and the limit."""


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
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


class Output(msgspec.Struct, frozen=True, kw_only=True):
    """What one step brought to one request; the last one has a ``finish_reason``.

    ``token_ids`` are the new tokens, a stop token included. ``cached_tokens`` counts the prompt tokens that were in
    the cache when the request was first admitted. ``error`` says why the engine gave the request up, where it did.
    """

    token_ids: list[int]
    cached_tokens: int
    finish_reason: FinishReason | None = None
    error: str | None = None
