"""``POST /v1/chat/completions``: OpenAI's chat completion."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec
from aiohttp import web

from engine.server.answer import Answer
from engine.server.asks import asks_of
from engine.server.bodies import ChatBody
from engine.server.body_reader import read_body
from engine.server.exchange import Piece
from engine.server.openai_reply import openai_reply
from engine.server.replica import Replica
from engine.server.sampling import DEFAULT_ANSWER_TOKENS, openai_sampling

__all__ = ["chat_completions"]


class _Message(msgspec.Struct, frozen=True, kw_only=True):
    role: Literal["assistant"] = "assistant"
    content: str


class _Choice(msgspec.Struct, frozen=True, kw_only=True):
    index: int = 0
    message: _Message
    logprobs: None = None
    finish_reason: str | None


class _Delta(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    role: str | None = None
    content: str | None = None


class _ChunkChoice(msgspec.Struct, frozen=True, kw_only=True):
    index: int = 0
    delta: _Delta
    logprobs: None = None
    finish_reason: str | None = None


class _Form:
    whole, chunk = "chat.completion", "chat.completion.chunk"

    def __init__(self) -> None:
        self._begun = False

    def choice(self, answer: Answer) -> _Choice:
        return _Choice(message=_Message(content=answer.text), finish_reason=answer.finish_reason)

    def choices(self, piece: Piece) -> Iterable[_ChunkChoice]:
        """The role with the first token, then the text, and the reason of the end."""
        if not self._begun:
            self._begun = True
            yield _ChunkChoice(delta=_Delta(role="assistant", content=""))
        if piece.text:
            yield _ChunkChoice(delta=_Delta(content=piece.text))
        if piece.answer.finish_reason is not None:
            yield _ChunkChoice(delta=_Delta(), finish_reason=piece.answer.finish_reason)


async def chat_completions(replica: Replica, request: web.Request) -> web.StreamResponse:
    """Answer one chat request."""
    body = await read_body(request, ChatBody)
    replica.check_model(body.model)
    prompt = await replica.prompts.read_chat(body.messages, arguments=body.chat_template_kwargs)
    sampling = openai_sampling(body, answer_tokens=_answer_tokens(replica, body, prompt))
    asks = asks_of(body, [prompt], [sampling], id_prefix="chatcmpl-")
    return await openai_reply(replica, request, body, asks, _Form())


def _answer_tokens(replica: Replica, body: ChatBody, prompt: list[int]) -> int:
    newer = body.max_completion_tokens is not None
    return replica.prompts.answer_budget(
        prompt,
        asked=body.max_completion_tokens if newer else body.max_tokens,
        default=DEFAULT_ANSWER_TOKENS,
        param="max_completion_tokens" if newer else "max_tokens",
    )
