"""The byte tokenizer: text as its UTF-8 bytes, conversations by five markers.

The rules, complete, so that a router can follow them without this package:

- ids 0..255 are the bytes of the text's UTF-8 form; nothing is normalised;
- ids 256..261 are markers: BOS 256, EOS 257, SYSTEM 258, USER 259, ASSISTANT 260, END 261;
- ids 262..271 pad the vocabulary to 272 and stand for nothing;
- a text prompt is ``[BOS]`` and the text's bytes;
- a conversation is ``[BOS]``; for each message its role's marker, the content's bytes and ``END``; then ``ASSISTANT``;
- roles are ``system``, ``developer`` (written as SYSTEM), ``user``, ``tool`` (written as USER) and ``assistant``; any
  other is an error;
- content is a string, or a list of ``{"type": "text", "text": ...}`` parts that are concatenated without separator;
- markers cannot be spelled in text: ``"<eos>"`` is five bytes;
- decoding drops ids from 256 up, and turns bytes that are no UTF-8 into U+FFFD;
- EOS and END end an answer.

This module knows nothing of torch or of any model: the simulated model uses it too.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from engine.model.tokenizer import TokenizerError

__all__ = ["ASSISTANT", "BOS", "END", "EOS", "SYSTEM", "USER", "ByteDecoder", "ByteTokenizer", "TokenizerError"]

BOS, EOS, SYSTEM, USER, ASSISTANT, END = range(256, 262)

_ROLES = {"system": SYSTEM, "developer": SYSTEM, "user": USER, "tool": USER, "assistant": ASSISTANT}


class ByteTokenizer:
    """A `Tokenizer` by the rules above. Holds no state."""

    name = "byte"
    vocab_size = 272
    eos_token_ids = (EOS, END)

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """See `Tokenizer`; the one special token is BOS."""
        return [BOS, *_utf8(text)] if special else list(_utf8(text))

    def apply_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        arguments: Mapping[str, Any] | None = None,
        open_answer: bool = True,
    ) -> list[int]:
        """See `Tokenizer`; template arguments have no place in these rules.

        Raises:
            TokenizerError: no message, an unknown role, or content that is not text.
        """
        if not messages:
            raise TokenizerError("messages is empty, at least one message is needed")
        ids = [BOS]
        for message in messages:
            ids += (_role_marker(message.get("role")), *_utf8(_text_of(message.get("content"))), END)
        return [*ids, ASSISTANT] if open_answer else ids

    def decode(self, ids: Iterable[int]) -> str:
        """Text of ``ids``, markers dropped.

        Raises:
            TokenizerError: an id outside the vocabulary.
        """
        decoder = self.decoder()
        return decoder.feed(ids) + decoder.finish()

    def decoder(self) -> ByteDecoder:
        """A decoder for an answer that arrives in parts."""
        return ByteDecoder()


class ByteDecoder:
    """A `Decoder`."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def feed(self, ids: Iterable[int]) -> str:
        """The text that ``ids`` complete; a character whose bytes are not all there yet is kept back."""
        return self._decoder.decode(bytes(_bytes_of(ids)))

    def finish(self) -> str:
        """The end of the answer: U+FFFD if it broke off inside a character, else nothing."""
        return self._decoder.decode(b"", final=True)


def _bytes_of(ids: Iterable[int]) -> Iterable[int]:
    for token in ids:
        if not 0 <= token < ByteTokenizer.vocab_size:
            raise TokenizerError(f"token id {token} is outside the vocabulary of {ByteTokenizer.vocab_size}")
        if token < BOS:
            yield token


def _utf8(text: str) -> bytes:
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise TokenizerError(f"character {error.start} of the text is a lone surrogate and has no UTF-8 form") from None


def _role_marker(role: object) -> int:
    if not isinstance(role, str) or role not in _ROLES:
        raise TokenizerError(f"message role {role!r} is unknown, the known ones are {', '.join(_ROLES)}")
    return _ROLES[role]


def _text_of(content: object) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, Sequence):
        return "".join(map(_text_of_part, content))
    raise TokenizerError(f"message content must be a string or a list of text parts, got {type(content).__name__}")


def _text_of_part(part: object) -> str:
    if isinstance(part, Mapping) and part.get("type") == "text" and isinstance(part.get("text"), str):
        return str(part["text"])
    raise TokenizerError('a content part must be {"type": "text", "text": "..."}')
