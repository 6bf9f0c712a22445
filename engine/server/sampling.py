"""From the sampling fields of each API to the engine's ``SamplingParams``; absent fields take the engine's defaults."""

from __future__ import annotations

from typing import Any

from engine.request import SamplingParams
from engine.server.bodies import GenerateSampling, OpenAIBody

__all__ = ["DEFAULT_ANSWER_TOKENS", "openai_sampling", "sglang_sampling"]

DEFAULT_ANSWER_TOKENS = SamplingParams().max_new_tokens


def openai_sampling(body: OpenAIBody, *, answer_tokens: int) -> SamplingParams:
    """Sampling of a completion or chat completion."""
    return _sampling(body, answer_tokens=answer_tokens, seed=body.seed)


def sglang_sampling(body: GenerateSampling, *, answer_tokens: int) -> SamplingParams:
    """Sampling of ``/generate``."""
    return _sampling(body, answer_tokens=answer_tokens, seed=body.sampling_seed)


def _sampling(body: OpenAIBody | GenerateSampling, *, answer_tokens: int, seed: int | None) -> SamplingParams:
    given: dict[str, Any] = {
        "temperature": body.temperature,
        "top_p": body.top_p,
        "top_k": body.top_k or None,  # vLLM's 0 means what -1 does: no limit
        "stop": (body.stop,) if isinstance(body.stop, str) else body.stop,
        "stop_token_ids": body.stop_token_ids,
        "ignore_eos": body.ignore_eos,
    }
    present = {name: value for name, value in given.items() if value is not None}
    return SamplingParams(max_new_tokens=answer_tokens, seed=seed, **present)
