"""A model's own tokenizer: what ``tokenizers`` makes of its vocabulary, and its chat template."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import tokenizers

from contract.text.chat_template import ChatTemplate, ConversationError
from engine.model.config import ModelError
from engine.model.tokenizer import TokenizerError

__all__ = ["TextDecoder", "TextTokenizer"]

_BROKEN = "\N{REPLACEMENT CHARACTER}"
_MAX_BROKEN = 32
"""Tokens in a row that may end inside a character."""
_CHARACTER_BYTES = 4


class TextTokenizer:
    """A `Tokenizer`. ``vocab_size`` is the model's: it may have room for more ids than the tokenizer uses.

    Raises:
        ModelError: the tokenizer uses ids that the model does not have.
    """

    def __init__(
        self, tokenizer: tokenizers.Tokenizer, template: ChatTemplate | None, *, name: str, vocab_size: int
    ) -> None:
        self.name = name
        self.vocab_size = vocab_size
        self._tokenizer = tokenizer
        self._template = template
        largest = max(tokenizer.get_vocab().values(), default=0)
        if largest >= vocab_size:
            raise ModelError(f"{name}: its tokenizer has ids up to {largest}, the model only below {vocab_size}")
        added = tokenizer.get_added_tokens_decoder()
        self._special = frozenset(token for token, text in added.items() if text.special)

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """See `Tokenizer`."""
        try:
            return list(self._tokenizer.encode(text, add_special_tokens=special).ids)
        except (TypeError, UnicodeEncodeError):
            raise TokenizerError("the text has a lone surrogate and no UTF-8 form") from None

    def apply_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        arguments: Mapping[str, Any] | None = None,
        open_answer: bool = True,
    ) -> list[int]:
        """See `Tokenizer`. The template writes the special tokens itself."""
        if not messages:
            raise TokenizerError("messages is empty, at least one message is needed")
        if self._template is None:
            raise TokenizerError("this model has no chat template")
        plain = list(map(_plain, messages))
        try:
            text = self._template.render(plain, arguments=arguments, open_answer=open_answer)
        except ConversationError as error:
            raise TokenizerError(str(error)) from None
        return self.encode(text, special=False)

    def decode(self, ids: Sequence[int]) -> str:
        """See `Tokenizer`."""
        return self._text_of(self._spoken(ids))

    def decoder(self) -> TextDecoder:
        """See `Tokenizer`."""
        return TextDecoder(self._spoken, self._text_of)

    def _spoken(self, ids: Iterable[int]) -> list[int]:
        """The ids without special tokens."""
        spoken = []
        for token in ids:
            if not 0 <= token < self.vocab_size:
                raise TokenizerError(f"token id {token} is outside the vocabulary of {self.vocab_size}")
            if token not in self._special:
                spoken.append(token)
        return spoken

    def _text_of(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=False)


def _plain(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """The message with its content as one string; several text parts stand one a line, as in vLLM."""
    content = message.get("content")
    if content is None or isinstance(content, str):
        return message
    if not isinstance(content, Sequence):
        kind = type(content).__name__
        raise TokenizerError(f"message content must be a string or a list of text parts, got {kind}")
    return {**message, "content": "\n".join(map(_text_of_part, content))}


def _text_of_part(part: object) -> str:
    match part:
        case {"type": "text", "text": str(text)}:
            return text
        case _:
            raise TokenizerError('a content part must be {"type": "text", "text": "..."}')


class TextDecoder:
    """Decodes ids as they come, although a token may hold but a part of a character, or be spelled by its neighbours.

    The tokens since the last whole character, and those of the one feed before, are decoded together each time; the
    beginning of that text has been given out already. A text that ends in U+FFFD may be waiting for the rest of a
    character and is kept back, unless it has been broken for so long that it must be what the answer is like.
    """

    def __init__(self, spoken: Callable[[Iterable[int]], list[int]], text_of: Callable[[Sequence[int]], str]) -> None:
        self._spoken = spoken
        self._text_of = text_of
        self._context: list[int] = []
        self._fresh: list[int] = []
        self._given = ""  # of the text of both

    def feed(self, ids: Iterable[int]) -> str:
        """See `Decoder`."""
        self._fresh += self._spoken(ids)
        text = self._text_of(self._context + self._fresh)
        if not text.endswith(_BROKEN):
            return self._give(text, keep=self._fresh)
        if len(self._fresh) <= _MAX_BROKEN:
            return ""
        return self._give(text[:-1], keep=self._fresh[-_CHARACTER_BYTES:])

    def finish(self) -> str:
        """See `Decoder`."""
        return self._text_of(self._context + self._fresh)[len(self._given) :]

    def _give(self, text: str, *, keep: list[int]) -> str:
        """What of ``text`` is new; from here on only the tokens ``keep`` are looked back at."""
        piece = text[len(self._given) :]
        self._context, self._fresh = keep, []
        kept = self._text_of(keep)
        self._given = kept[:-1] if kept.endswith(_BROKEN) else kept
        return piece
