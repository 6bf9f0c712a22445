"""Prompts as they came to token ids, and the refusal of what the model cannot take."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import cast

from contract.api_error import ApiError
from engine.model.tokenizer import Tokenizer, TokenizerError
from engine.server.bodies import Prompt

__all__ = ["PromptReader"]

_INLINE_CHARS = 2048
"""Texts up to here take less time than a change of threads."""


class PromptReader:
    """Reads prompts for one model; ``limit`` is the longest sequence it takes in tokens, prompt and answer together.

    Long texts are tokenized on a thread, where they hold up nobody else's answers.
    """

    def __init__(self, tokenizer: Tokenizer, *, limit: int) -> None:
        self._tokenizer = tokenizer
        self._limit = limit

    async def read(self, prompt: Prompt, *, param: str) -> list[list[int]]:
        """Token ids of one prompt or of many, in order; each has a token at least and leaves room for an answer.

        Raises:
            ApiError: 400 naming ``param``.
        """
        prompts = await self._split(prompt, param)
        for ids in prompts:
            self._check(ids, param)
        return prompts

    async def read_chat(
        self, messages: Sequence[Mapping[str, object]], *, arguments: Mapping[str, object] | None
    ) -> list[int]:
        """Token ids of a conversation, up to where the answer starts; ``arguments`` are for the chat template.

        Raises:
            ApiError: 400, the model has no form for them, or they are too long.
        """
        ids = await self.ids_of_chat(messages, arguments=arguments)
        self._check(ids, "messages")
        return ids

    async def ids_of_chat(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        arguments: Mapping[str, object] | None,
        open_answer: bool = True,
    ) -> list[int]:
        """Token ids of a conversation of any length.

        Raises:
            ApiError: 400, the model has no form for it.
        """
        size = sum(len(str(message.get("content"))) for message in messages)
        render = partial(self._tokenizer.apply_chat, messages, arguments=arguments, open_answer=open_answer)
        return await _tokenized(render, size, param="messages")

    async def ids_of_text(self, text: str, *, param: str, special: bool = True) -> list[int]:
        """Token ids of a text of any length.

        Raises:
            ApiError: 400, it cannot be tokenized.
        """
        return await _tokenized(partial(self._tokenizer.encode, text, special=special), len(text), param=param)

    def answer_budget(self, prompt: Sequence[int], *, asked: int | None, default: int, param: str) -> int:
        """Tokens an answer may have: as asked, or the default where that fits, less where it does not."""
        room = self._limit - len(prompt)
        if asked is None:
            return min(default, room)
        if asked > room:
            total = len(prompt) + asked
            message = f"the prompt has {len(prompt)} tokens and {param} is {asked}: {total} of {self._limit} at most"
            raise ApiError(message, param=param, code="context_length_exceeded")
        return asked

    async def _split(self, prompt: Prompt, param: str) -> list[list[int]]:
        if isinstance(prompt, str):
            return [await self._encode(prompt, param)]
        kinds = set(map(type, prompt))
        if len(kinds) > 1:
            raise ApiError(f"{param} mixes texts, token ids and lists of token ids", param=param)
        if kinds == {str}:
            return [await self._encode(text, param) for text in cast("list[str]", prompt)]
        return cast("list[list[int]]", prompt if kinds == {list} else [prompt])

    async def _encode(self, text: str, param: str) -> list[int]:
        if not text:
            raise ApiError(f"{param} is empty", param=param)
        return await self.ids_of_text(text, param=param)

    def _check(self, ids: Sequence[int], param: str) -> None:
        if not ids:
            raise ApiError(f"{param} is empty", param=param)
        vocabulary = self._tokenizer.vocab_size
        for extreme in (min(ids), max(ids)):
            if not 0 <= extreme < vocabulary:
                raise ApiError(f"token id {extreme} is outside the vocabulary [0, {vocabulary})", param=param)
        if len(ids) >= self._limit:
            message = f"the prompt has {len(ids)} tokens, at most {self._limit - 1} leave room for an answer"
            raise ApiError(message, param=param, code="context_length_exceeded")


async def _tokenized(work: Callable[[], list[int]], size: int, *, param: str) -> list[int]:
    """What ``work`` makes of ``size`` characters."""
    try:
        return work() if size <= _INLINE_CHARS else await asyncio.to_thread(work)
    except TokenizerError as error:
        raise ApiError(str(error), param=param) from None
