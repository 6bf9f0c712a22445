"""``POST /v1/completions``: OpenAI's text completion, from texts or from token ids."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from aiohttp import web

from engine.server.answer import Answer
from engine.server.asks import asks_of
from engine.server.bodies import CompletionBody
from engine.server.body_reader import read_body
from engine.server.exchange import Piece
from engine.server.openai_reply import openai_reply
from engine.server.replica import Replica
from engine.server.sampling import openai_sampling

__all__ = ["completions"]

_DEFAULT_MAX_TOKENS = 16  # OpenAI's


class _Choice(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    text: str
    logprobs: None = None
    finish_reason: str | None = None


class _Form:
    whole = chunk = "text_completion"

    def choice(self, answer: Answer) -> _Choice:
        return _Choice(index=answer.index, text=answer.text, finish_reason=answer.finish_reason)

    def choices(self, piece: Piece) -> Iterable[_Choice]:
        answer = piece.answer
        yield _Choice(index=answer.index, text=piece.text, finish_reason=answer.finish_reason)


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
    return await openai_reply(replica, request, body, asks, _Form())
