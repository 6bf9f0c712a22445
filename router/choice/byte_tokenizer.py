"""The byte tokenizer of our engine's built-in models, by the rules of the contract."""

from __future__ import annotations

from typing import Any

import msgspec

from contract.byte_tokenizer import ByteRuleError, conversation_ids, text_ids
from router.choice.texts import Chat, NotTokenizableError

__all__ = ["ByteTokenizer"]

_MESSAGES = msgspec.json.Decoder(list[dict[str, Any]])


class ByteTokenizer:
    """A `Tokenizer`. Holds no state."""

    def encode(self, text: str) -> list[int]:
        """See `Tokenizer`."""
        try:
            return text_ids(text)
        except ByteRuleError as error:
            raise NotTokenizableError(str(error)) from None

    def encode_chat(self, chat: Chat) -> list[int]:
        """See `Tokenizer`; tools and template arguments have no place in these rules."""
        try:
            return conversation_ids(_MESSAGES.decode(chat.messages))
        except (ByteRuleError, msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise NotTokenizableError(f"messages are not plain text: {error}") from None
