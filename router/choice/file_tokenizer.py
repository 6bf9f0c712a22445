"""A served model's own tokenizer, from its files. What was tokenized before is remembered."""

from __future__ import annotations

from array import array
from math import inf
from pathlib import Path
from typing import Any

import msgspec
import tokenizers

from contract.text.chat_template import ChatTemplate, ConversationError
from contract.text.tokenizer_files import read_tokenizer_files
from router.choice.segments import SegmentedTokenizer
from router.choice.texts import Chat, NotTokenizableError

__all__ = ["FileTokenizer", "load_tokenizer"]

CACHE_BYTES = 64 * 1024 * 1024


class FileTokenizer:
    """Thread-safe. What was tokenized before is remembered, within ``CACHE_BYTES``."""

    def __init__(self, tokenizer: tokenizers.Tokenizer, template: ChatTemplate | None) -> None:
        self._tokenizer = SegmentedTokenizer(tokenizer, cache_bytes=CACHE_BYTES)
        self._template = template

    def encode(self, text: str, *, most_new: float = inf) -> array[int]:
        """With the special tokens that the model puts around a prompt."""
        return self._ids(text, special=True, most_new=most_new)

    def encode_chat(self, chat: Chat, *, most_new: float = inf) -> array[int]:
        """Through the chat template, which writes the special tokens itself."""
        if self._template is None:
            raise NotTokenizableError("the tokenizer has no chat template")
        return self._ids(_rendered(self._template, chat), special=False, most_new=most_new)

    def _ids(self, text: str, *, special: bool, most_new: float) -> array[int]:
        try:
            return self._tokenizer.encode(text, special=special, most_new=most_new)
        except (TypeError, UnicodeEncodeError):  # the library's words for it, by version
            raise NotTokenizableError("the text has a lone surrogate and no UTF-8 form") from None


def load_tokenizer(path: Path) -> FileTokenizer:
    """The tokenizer of a ``tokenizer.json``, or of a folder that has one. Blocking: seconds for large ones.

    Raises:
        contract.text.tokenizer_files.TokenizerFileError: a file is missing or cannot be read.
    """
    files = read_tokenizer_files(path)
    return FileTokenizer(files.tokenizer, files.template)


def _rendered(template: ChatTemplate, chat: Chat) -> str:
    arguments = _decode(chat.template_kwargs)
    try:
        return template.render(
            [_plain(message) for message in _decode(chat.messages)],
            tools=_decode(chat.tools),
            arguments=arguments if isinstance(arguments, dict) else None,
        )
    except ConversationError as error:
        raise NotTokenizableError(str(error)) from None


def _plain(message: dict[str, Any]) -> dict[str, Any]:
    """The message with text content as one string. Engines differ in how they join several parts: those stay out."""
    match message.get("content"):
        case [{"type": "text", "text": str(text)}]:
            return {**message, "content": text}
        case None | str():
            return message
        case _:
            raise NotTokenizableError("a message's content is more than one text")


def _decode(raw: msgspec.Raw) -> Any:
    return msgspec.json.decode(raw) if bytes(raw) else None
