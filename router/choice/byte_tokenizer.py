"""The byte tokenizer of our engine's built-in models, by the rules of the contract."""

from __future__ import annotations

from math import inf
from typing import Any

import msgspec

from contract.byte_tokenizer import ByteRuleError, conversation_ids, text_ids
from router.choice.texts import Chat, NotTokenizableError, TooMuchNewError

__all__ = ["ByteTokenizer"]

_MESSAGES = msgspec.json.Decoder(list[dict[str, Any]])


class ByteTokenizer:
    """A `Tokenizer`. Holds no state."""

    def encode(self, text: str, *, most_new: float = inf) -> list[int]:
        """See `Tokenizer`."""
        _check_new(len(text), most_new)
        try:
            return text_ids(text)
        except ByteRuleError as error:
            raise NotTokenizableError(str(error)) from None

    def encode_chat(self, chat: Chat, *, most_new: float = inf) -> list[int]:
        """See `Tokenizer`; tools and template arguments have no place in these rules."""
        _check_new(len(bytes(chat.messages)), most_new)
        try:
            return conversation_ids(_MESSAGES.decode(chat.messages))
        except (ByteRuleError, msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise NotTokenizableError(f"messages are not plain text: {error}") from None


def _check_new(size: int, most_new: float) -> None:
    if size > most_new:
        raise TooMuchNewError
