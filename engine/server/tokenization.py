"""``POST /tokenize`` and ``/detokenize``, in vLLM's shape: a router without this tokenizer asks here."""

from __future__ import annotations

import msgspec
from aiohttp import web

from contract.api_error import ApiError
from engine.model.tokenizer import TokenizerError
from engine.server.bodies import DetokenizeBody, TokenizeBody
from engine.server.body_reader import read_body
from engine.server.replica import Replica
from engine.server.replies import json_reply

__all__ = ["detokenize", "tokenize"]


class _Tokens(msgspec.Struct, frozen=True, kw_only=True):
    tokens: list[int]
    count: int
    max_model_len: int


class _Text(msgspec.Struct, frozen=True, kw_only=True):
    """The text under vLLM's name and under SGLang's."""

    prompt: str
    text: str


async def tokenize(replica: Replica, request: web.Request) -> web.Response:
    """Ids exactly as a completion of the same prompt, or a chat of the same messages, would have them."""
    body = await read_body(request, TokenizeBody)
    replica.check_model(body.model)
    tokens = await _tokens(replica, body)
    return json_reply(_Tokens(tokens=tokens, count=len(tokens), max_model_len=replica.config.longest_sequence))


async def _tokens(replica: Replica, body: TokenizeBody) -> list[int]:
    given = [value for value in (body.prompt, body.text, body.messages) if value is not None]
    if len(given) != 1:
        raise ApiError("exactly one of prompt, text and messages is needed", param="prompt")
    if body.messages is not None:
        return await replica.prompts.ids_of_chat(
            body.messages,
            arguments=body.chat_template_kwargs,
            open_answer=body.add_generation_prompt is not False,
        )
    special = body.add_special_tokens is not False
    return await replica.prompts.ids_of_text(str(given[0]), param="prompt", special=special)


async def detokenize(replica: Replica, request: web.Request) -> web.Response:
    """The text of token ids, markers dropped."""
    body = await read_body(request, DetokenizeBody)
    replica.check_model(body.model)
    try:
        text = replica.tokenizer.decode(body.tokens)
    except TokenizerError as error:
        raise ApiError(str(error), param="tokens") from None
    return json_reply(_Text(prompt=text, text=text))
