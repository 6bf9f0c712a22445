"""``POST /v1/chat/completions``: OpenAI's chat completion."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Literal

import msgspec
from aiohttp import web

from engine.server.asks import asks_of
from engine.server.bodies import ChatBody, read_body
from engine.server.exchange import Exchange
from engine.server.replica import Replica
from engine.server.replies import json_reply, stream_reply
from engine.server.sampling import DEFAULT_ANSWER_TOKENS, openai_sampling
from engine.server.usage import Usage, usage_of

__all__ = ["chat_completions"]


class _Message(msgspec.Struct, frozen=True, kw_only=True):
    role: Literal["assistant"] = "assistant"
    content: str


class _Choice(msgspec.Struct, frozen=True, kw_only=True):
    index: int = 0
    message: _Message
    logprobs: None = None
    finish_reason: str | None


class _Completion(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[_Choice]
    usage: Usage


class _Delta(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    role: str | None = None
    content: str | None = None


class _ChunkChoice(msgspec.Struct, frozen=True, kw_only=True):
    index: int = 0
    delta: _Delta
    logprobs: None = None
    finish_reason: str | None = None


class _Chunk(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[_ChunkChoice]
    usage: Usage | None = None


async def chat_completions(replica: Replica, request: web.Request) -> web.StreamResponse:
    """Answer one chat request."""
    body = await read_body(request, ChatBody)
    replica.check_model(body.model)
    prompt = await replica.prompts.read_chat(body.messages, arguments=body.chat_template_kwargs)
    sampling = openai_sampling(body, answer_tokens=_answer_tokens(replica, body, prompt))
    asks = asks_of(body, [prompt], [sampling], id_prefix="chatcmpl-")
    name, created, model = asks[0].rid, int(time.time()), replica.config.model_name
    with replica.exchange(request, asks, pinned=body.pinned_rank) as exchange:
        if body.stream:
            head = _Chunk(id=name, created=created, model=model, choices=[])
            return await stream_reply(request, _chunks(exchange, head, usage=body.wants_usage_chunk))
        answers = await exchange.finished()
    choices = [_Choice(message=_Message(content=answer.text), finish_reason=answer.finish_reason) for answer in answers]
    return json_reply(_Completion(id=name, created=created, model=model, choices=choices, usage=usage_of(answers)))


def _answer_tokens(replica: Replica, body: ChatBody, prompt: list[int]) -> int:
    newer = body.max_completion_tokens is not None
    return replica.prompts.answer_budget(
        prompt,
        asked=body.max_completion_tokens if newer else body.max_tokens,
        default=DEFAULT_ANSWER_TOKENS,
        param="max_completion_tokens" if newer else "max_tokens",
    )


async def _chunks(exchange: Exchange, head: _Chunk, *, usage: bool) -> AsyncIterator[_Chunk]:
    """The role with the first token, the text, the reason of the end, and the token counts where asked for."""
    first = True
    async for piece in exchange.pieces():
        if first:
            yield _chunk(head, _Delta(role="assistant", content=""))
            first = False
        if piece.text:
            yield _chunk(head, _Delta(content=piece.text))
        if piece.answer.finish_reason is not None:
            yield _chunk(head, _Delta(), finish_reason=piece.answer.finish_reason)
    if usage:
        yield msgspec.structs.replace(head, usage=usage_of(exchange.answers))


def _chunk(head: _Chunk, delta: _Delta, *, finish_reason: str | None = None) -> _Chunk:
    return msgspec.structs.replace(head, choices=[_ChunkChoice(delta=delta, finish_reason=finish_reason)])
