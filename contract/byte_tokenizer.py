"""The byte tokenizer of the built-in models: text as its UTF-8 bytes, conversations by five markers.

Engine and router must have the same ids for the same text, and neither imports the other, so the rules live here:

- ids 0..255 are the bytes of the text's UTF-8 form; nothing is normalised;
- ids 256..261 are markers: BOS 256, EOS 257, SYSTEM 258, USER 259, ASSISTANT 260, END 261;
- ids 262..271 pad the vocabulary to 272 and stand for nothing;
- a text prompt is ``[BOS]`` and the text's bytes;
- a conversation is ``[BOS]``; for each message its role's marker, the content's bytes and ``END``; then ``ASSISTANT``;
- roles are ``system``, ``developer`` (written as SYSTEM), ``user``, ``tool`` (written as USER) and ``assistant``; any
  other is an error;
- content is a string, or a list of ``{"type": "text", "text": ...}`` parts that are concatenated without separator;
- markers cannot be spelled in text: ``"<eos>"`` is five bytes;
- EOS and END end an answer.

How ids become text again is the engine's affair.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = [
    "ASSISTANT",
    "BOS",
    "END",
    "EOS",
    "NAME",
    "SYSTEM",
    "USER",
    "VOCABULARY",
    "ByteRuleError",
    "conversation_ids",
    "text_ids",
]

NAME = "byte"
"""What an engine calls this tokenizer in ``tokenizer_path``."""

BOS, EOS, SYSTEM, USER, ASSISTANT, END = range(256, 262)
VOCABULARY = 272

_ROLES = {"system": SYSTEM, "developer": SYSTEM, "user": USER, "tool": USER, "assistant": ASSISTANT}


class ByteRuleError(ValueError):
    """Text or messages that the rules do not cover, in one line."""


def text_ids(text: str, *, special: bool = True) -> list[int]:
    """Ids of a text; ``special`` puts BOS, the one special token, before it.

    Raises:
        ByteRuleError: the text has no UTF-8 form.
    """
    return [BOS, *_utf8(text)] if special else list(_utf8(text))


def conversation_ids(messages: Sequence[Mapping[str, Any]], *, open_answer: bool = True) -> list[int]:
    """Ids of OpenAI's ``messages``; without ``open_answer`` nothing follows the last of them.

    Raises:
        ByteRuleError: no message, an unknown role, or content that is not text.
    """
    if not messages:
        raise ByteRuleError("messages is empty, at least one message is needed")
    ids = [BOS]
    for message in messages:
        ids += (_role_marker(message.get("role")), *_utf8(_text_of(message.get("content"))), END)
    return [*ids, ASSISTANT] if open_answer else ids


def _utf8(text: str) -> bytes:
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ByteRuleError(f"character {error.start} of the text is a lone surrogate and has no UTF-8 form") from None


def _role_marker(role: object) -> int:
    if not isinstance(role, str) or role not in _ROLES:
        raise ByteRuleError(f"message role {role!r} is unknown, the known ones are {', '.join(_ROLES)}")
    return _ROLES[role]


def _text_of(content: object) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, Sequence):
        return "".join(map(_text_of_part, content))
    raise ByteRuleError(f"message content must be a string or a list of text parts, got {type(content).__name__}")


def _text_of_part(part: object) -> str:
    if isinstance(part, Mapping) and part.get("type") == "text" and isinstance(part.get("text"), str):
        return str(part["text"])
    raise ByteRuleError('a content part must be {"type": "text", "text": "..."}')
