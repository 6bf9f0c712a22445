"""Prompts as they came to token ids, and the refusal of what the model cannot take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from engine.model.byte_tokenizer import ByteTokenizer, TokenizerError
from engine.server.bodies import Prompt
from engine.server.errors import ApiError

__all__ = ["PromptReader"]


class PromptReader:
    """Reads prompts for one model; ``limit`` is the longest sequence it takes in tokens, prompt and answer together."""

    def __init__(self, tokenizer: ByteTokenizer, *, limit: int) -> None:
        self._tokenizer = tokenizer
        self._limit = limit

    def read(self, prompt: Prompt, *, param: str) -> list[list[int]]:
        """Token ids of one prompt or of many, in order; each has a token at least and leaves room for an answer.

        Raises:
            ApiError: 400 naming ``param``.
        """
        prompts = self._split(prompt, param)
        for ids in prompts:
            self._check(ids, param)
        return prompts

    def read_chat(self, messages: Sequence[Mapping[str, object]]) -> list[int]:
        """Token ids of a conversation, up to where the answer starts."""
        try:
            ids = self._tokenizer.apply_chat(messages)
        except TokenizerError as error:
            raise ApiError(str(error), param="messages") from None
        self._check(ids, "messages")
        return ids

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

    def _split(self, prompt: Prompt, param: str) -> list[list[int]]:
        if isinstance(prompt, str):
            return [self._encode(prompt, param)]
        kinds = set(map(type, prompt))
        if len(kinds) > 1:
            raise ApiError(f"{param} mixes texts, token ids and lists of token ids", param=param)
        if kinds == {str}:
            return [self._encode(text, param) for text in cast("list[str]", prompt)]
        return cast("list[list[int]]", prompt if kinds == {list} else [prompt])

    def _encode(self, text: str, param: str) -> list[int]:
        if not text:
            raise ApiError(f"{param} is empty", param=param)
        try:
            return self._tokenizer.encode(text)
        except TokenizerError as error:
            raise ApiError(str(error), param=param) from None

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
