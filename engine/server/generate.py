"""``POST /generate``: SGLang's own route, one prompt or a batch, whole or streamed."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Any

import msgspec
from aiohttp import web

from contract.api_error import ApiError
from engine.request import SamplingParams
from engine.server.answer import Answer, Finish
from engine.server.asks import asks_of
from engine.server.bodies import GenerateBody, GenerateSampling
from engine.server.body_reader import read_body
from engine.server.exchange import Exchange
from engine.server.replica import Replica
from engine.server.replies import json_reply, stream_reply
from engine.server.sampling import DEFAULT_ANSWER_TOKENS, sglang_sampling

__all__ = ["generate"]


class _Meta(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    finish_reason: dict[str, Any] | None
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    dp_rank: int
    e2e_latency: float


class _Generated(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One answer so far: text and ids are cumulative in a stream, as SGLang's are. ``index`` is set in batches."""

    text: str
    output_ids: list[int]
    meta_info: _Meta
    index: int | None = None


async def generate(replica: Replica, request: web.Request) -> web.StreamResponse:
    """Answer one request; a list of prompts gets a list of answers, in order."""
    body = await read_body(request, GenerateBody)
    prompts, batched = await _prompts(replica, body)
    asks = asks_of(body, prompts, _samplings(replica, body, prompts), id_prefix="")
    with replica.exchange(request, asks, pinned=body.pinned_rank) as exchange:
        if body.stream:
            return await stream_reply(request, _snapshots(exchange, batched=batched))
        answers = await exchange.finished()
    generated = [_generated(answer) for answer in answers]
    return json_reply(generated if batched else generated[0])


async def _prompts(replica: Replica, body: GenerateBody) -> tuple[list[list[int]], bool]:
    """Token ids of each prompt, and whether the client asked with a list of prompts."""
    if (body.text is None) == (body.input_ids is None):
        raise ApiError("exactly one of text and input_ids is needed", param="text")
    if body.text is not None:
        return await replica.prompts.read(body.text, param="text"), isinstance(body.text, list)
    assert body.input_ids is not None
    batched = bool(body.input_ids) and isinstance(body.input_ids[0], list)
    return await replica.prompts.read(body.input_ids, param="input_ids"), batched


def _samplings(replica: Replica, body: GenerateBody, prompts: list[list[int]]) -> list[SamplingParams]:
    given = body.sampling_params if body.sampling_params is not None else GenerateSampling()
    each = given if isinstance(given, list) else [given] * len(prompts)
    if len(each) != len(prompts):
        message = f"sampling_params has {len(each)} entries for {len(prompts)} prompts"
        raise ApiError(message, param="sampling_params")
    samplings = []
    for prompt, params in zip(prompts, each, strict=True):
        budget = replica.prompts.answer_budget(
            prompt, asked=params.max_new_tokens, default=DEFAULT_ANSWER_TOKENS, param="max_new_tokens"
        )
        samplings.append(sglang_sampling(params, answer_tokens=budget))
    return samplings


async def _snapshots(exchange: Exchange, *, batched: bool) -> AsyncIterator[_Generated]:
    async for piece in exchange.pieces():
        answer = piece.answer
        yield _generated(answer, index=answer.index if batched else None)


def _generated(answer: Answer, *, index: int | None = None) -> _Generated:
    meta = _Meta(
        id=answer.ask.rid,
        finish_reason=_reason(answer.finish, length=len(answer.output_ids)),
        prompt_tokens=len(answer.ask.prompt),
        completion_tokens=len(answer.output_ids),
        cached_tokens=answer.cached_tokens,
        dp_rank=answer.dp_rank,
        e2e_latency=time.monotonic() - answer.started,
    )
    return _Generated(text=answer.text, output_ids=answer.output_ids, meta_info=meta, index=index)


def _reason(finish: Finish | None, *, length: int) -> dict[str, Any] | None:
    """SGLang's object: the kind, and what goes with it."""
    match finish:
        case None:
            return None
        case Finish(kind="stop"):
            return {"type": "stop", "matched": finish.matched}
        case Finish(kind="length"):
            return {"type": "length", "length": length}
    return {"type": finish.kind}
