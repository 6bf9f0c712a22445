"""OpenAI's ``usage`` object. Cached tokens are always in it: they are what a router checks its predictions by."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from engine.server.answer import Answer

__all__ = ["PromptTokensDetails", "Usage", "usage_of"]


class PromptTokensDetails(msgspec.Struct, frozen=True):
    """Of the prompt tokens: those that needed no prefill."""

    cached_tokens: int


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens of one HTTP request, all its prompts together."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


def usage_of(answers: Sequence[Answer]) -> Usage:
    """What the answers took."""
    prompt = sum(len(answer.ask.prompt) for answer in answers)
    completion = sum(len(answer.output_ids) for answer in answers)
    cached = sum(answer.cached_tokens for answer in answers)
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=completion,
        total_tokens=prompt + completion,
        prompt_tokens_details=PromptTokensDetails(cached),
    )
