"""Prompts that are text still: a plain one, or a conversation. As the client sent them; nothing is interpreted here."""

from __future__ import annotations

from typing import Protocol

import msgspec

__all__ = ["Chat", "NotTokenizableError", "Text", "Tokenizer"]

NO_JSON = msgspec.Raw()


class NotTokenizableError(ValueError):
    """Text that a tokenizer has no rule for; the engine may still have one. The message says what it is."""


class Chat(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation: OpenAI's ``messages``, ``tools``, ``chat_template_kwargs``, each as JSON (empty: not given)."""

    messages: msgspec.Raw
    tools: msgspec.Raw = NO_JSON
    template_kwargs: msgspec.Raw = NO_JSON


Text = str | Chat


class Tokenizer(Protocol):
    """Text to token ids, exactly as the engine has them."""

    def encode(self, text: str) -> list[int]:
        """Ids of a text prompt, special tokens included."""
        ...

    def encode_chat(self, chat: Chat) -> list[int]:
        """Ids of a conversation, up to where the answer starts.

        Raises:
            NotTokenizableError: the rules do not cover it.
        """
        ...
