"""Prompts that are text still: a plain one, or a conversation. As the client sent them; nothing is interpreted here."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Protocol

import msgspec

__all__ = ["Chat", "NotTokenizableError", "Text", "Tokenizer", "TooMuchNewError"]

NO_JSON = msgspec.Raw()


class NotTokenizableError(ValueError):
    """Text that a tokenizer has no rule for; the engine may still have one. The message says what it is."""


class TooMuchNewError(Exception):
    """Tokenizing would take a while: too much of the text is not known."""


class Chat(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation: OpenAI's ``messages``, ``tools``, ``chat_template_kwargs``, each as JSON (empty: not given)."""

    messages: msgspec.Raw
    tools: msgspec.Raw = NO_JSON
    template_kwargs: msgspec.Raw = NO_JSON


Text = str | Chat


class Tokenizer(Protocol):
    """Text to token ids, exactly as the engine has them. Not more than ``most_new`` characters of it are tokenized for
    that, what is remembered set aside."""

    def encode(self, text: str, *, most_new: float = inf) -> Sequence[int]:
        """Ids of a text prompt, special tokens included.

        Raises:
            NotTokenizableError: it has no ids.
            TooMuchNewError: there is more to do than ``most_new``.
        """
        ...

    def encode_chat(self, chat: Chat, *, most_new: float = inf) -> Sequence[int]:
        """Ids of a conversation, up to where the answer starts.

        Raises:
            NotTokenizableError: the rules do not cover it.
            TooMuchNewError: there is more to do than ``most_new``.
        """
        ...
