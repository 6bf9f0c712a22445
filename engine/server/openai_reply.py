"""Answers as OpenAI's routes write them, whole or streamed; what a choice looks like is each route's own."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any, Protocol

import msgspec
from aiohttp import web

from engine.server.answer import Answer, Ask
from engine.server.bodies import OpenAIBody
from engine.server.exchange import Exchange, Piece
from engine.server.replica import Replica
from engine.server.replies import json_reply, stream_reply
from engine.server.usage import Usage, usage_of

__all__ = ["Form", "openai_reply"]


class Form(Protocol):
    """How one request's answers look on its route."""

    whole: str
    """What a whole answer calls itself."""
    chunk: str
    """What a chunk of a stream calls itself."""

    def choice(self, answer: Answer) -> object:
        """An answer that has ended, as JSON takes it."""
        ...

    def choices(self, piece: Piece) -> Iterable[object]:
        """A piece of one, as the choices of one chunk each; pieces come in order, each once."""
        ...


class _Reply(msgspec.Struct, frozen=True, kw_only=True):
    """A whole answer, or one chunk of its stream: both have the same fields."""

    id: str
    object: str
    created: int
    model: str
    choices: Sequence[Any] = ()
    usage: Usage | None = None


async def openai_reply(
    replica: Replica, request: web.Request, body: OpenAIBody, asks: Sequence[Ask], form: Form
) -> web.StreamResponse:
    """Have ``asks`` answered, and write what comes as ``body`` wants it."""
    head = _Reply(
        id=asks[0].rid,
        object=form.chunk if body.stream else form.whole,
        created=int(time.time()),
        model=replica.config.model_name,
    )
    with replica.exchange(request, asks, pinned=body.pinned_rank) as exchange:
        if body.stream:
            return await stream_reply(request, _chunks(exchange, head, form, usage=body.wants_usage_chunk))
        answers = await exchange.finished()
    return json_reply(msgspec.structs.replace(head, choices=list(map(form.choice, answers)), usage=usage_of(answers)))


async def _chunks(exchange: Exchange, head: _Reply, form: Form, *, usage: bool) -> AsyncIterator[_Reply]:
    async for piece in exchange.pieces():
        for choice in form.choices(piece):
            yield msgspec.structs.replace(head, choices=(choice,))
    if usage:
        yield msgspec.structs.replace(head, usage=usage_of(exchange.answers))
