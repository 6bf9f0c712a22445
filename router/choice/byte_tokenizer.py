"""The byte tokenizer of our engine's built-in models, by its published rules (``engine/model/byte_tokenizer.py``).

A text prompt is BOS and the text's UTF-8 bytes; a conversation is BOS, then role marker, content bytes and END for each
message, then ASSISTANT. A router host has no engine installed, hence the rules a second time; a test compares the two.
"""

from __future__ import annotations

import msgspec

from router.choice.texts import Chat, NotTokenizableError

__all__ = ["ByteTokenizer"]

_BOS, _SYSTEM, _USER, _ASSISTANT, _END = 256, 258, 259, 260, 261
_ROLES = {"system": _SYSTEM, "developer": _SYSTEM, "user": _USER, "tool": _USER, "assistant": _ASSISTANT}


class _Part(msgspec.Struct, tag_field="type", tag="text"):
    text: str


class _Message(msgspec.Struct):
    role: str
    content: str | list[_Part]

    @property
    def text(self) -> str:
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)


_MESSAGES = msgspec.json.Decoder(list[_Message])


class ByteTokenizer:
    """Holds no state."""

    def encode(self, text: str) -> list[int]:
        """BOS and bytes."""
        return [_BOS, *_utf8(text)]

    def encode_chat(self, chat: Chat) -> list[int]:
        """See the module; tools and template arguments have no place in these rules."""
        try:
            messages = _MESSAGES.decode(chat.messages)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise NotTokenizableError(f"messages are not plain text: {error}") from None
        ids = [_BOS]
        for message in messages:
            if message.role not in _ROLES:
                raise NotTokenizableError(f"message role {message.role!r} has no marker")
            ids += (_ROLES[message.role], *_utf8(message.text), _END)
        ids.append(_ASSISTANT)
        return ids


def _utf8(text: str) -> bytes:
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:
        raise NotTokenizableError("the text has a lone surrogate and no UTF-8 form") from None
