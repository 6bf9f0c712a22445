"""``POST /v1/completions``: OpenAI's text completion, from texts or from token ids."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Literal

import msgspec
from aiohttp import web

from engine.server.asks import asks_of
from engine.server.bodies import CompletionBody, read_body
from engine.server.exchange import Exchange
from engine.server.replica import Replica
from engine.server.replies import json_reply, stream_reply
from engine.server.sampling import openai_sampling
from engine.server.usage import Usage, usage_of

__all__ = ["completions"]

_DEFAULT_MAX_TOKENS = 16  # OpenAI's


class _Choice(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    text: str
    logprobs: None = None
    finish_reason: str | None = None


class _Completion(msgspec.Struct, frozen=True, kw_only=True):
    """The whole answer, or one chunk of its stream: both have the same fields."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[_Choice]
    usage: Usage | None = None


async def completions(replica: Replica, request: web.Request) -> web.StreamResponse:
    """Answer one completion request."""
    body = await read_body(request, CompletionBody)
    replica.check_model(body.model)
    prompts = await replica.prompts.read(body.prompt, param="prompt")
    samplings = []
    for prompt in prompts:
        budget = replica.prompts.answer_budget(
            prompt, asked=body.max_tokens, default=_DEFAULT_MAX_TOKENS, param="max_tokens"
        )
        samplings.append(openai_sampling(body, answer_tokens=budget))
    asks = asks_of(body, prompts, samplings, id_prefix="cmpl-")
    head = _Completion(id=asks[0].rid, created=int(time.time()), model=replica.config.model_name, choices=[])
    with replica.exchange(request, asks, pinned=body.pinned_rank) as exchange:
        if body.stream:
            return await stream_reply(request, _chunks(exchange, head, usage=body.wants_usage_chunk))
        answers = await exchange.finished()
    choices = [_Choice(index=answer.index, text=answer.text, finish_reason=answer.finish_reason) for answer in answers]
    return json_reply(msgspec.structs.replace(head, choices=choices, usage=usage_of(answers)))


async def _chunks(exchange: Exchange, head: _Completion, *, usage: bool) -> AsyncIterator[_Completion]:
    async for piece in exchange.pieces():
        answer = piece.answer
        choice = _Choice(index=answer.index, text=piece.text, finish_reason=answer.finish_reason)
        yield msgspec.structs.replace(head, choices=[choice])
    if usage:
        yield msgspec.structs.replace(head, usage=usage_of(exchange.answers))
