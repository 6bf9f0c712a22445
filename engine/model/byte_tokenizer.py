"""The byte tokenizer as the server's `Tokenizer`: the contract's rules, and ids back to text.

Decoding drops ids from 256 up, and turns bytes that are no UTF-8 into U+FFFD. This module knows nothing of torch or of
any model: the simulated model uses it too, with a vocabulary as wide as the wire, so that traces of real token ids can
be played on it.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from contract.byte_tokenizer import (
    ASSISTANT,
    BOS,
    END,
    EOS,
    NAME,
    SYSTEM,
    USER,
    VOCABULARY,
    ByteRuleError,
    conversation_ids,
    text_ids,
)
from engine.model.tokenizer import TokenizerError

__all__ = [
    "ANY_U32",
    "ASSISTANT",
    "BOS",
    "END",
    "EOS",
    "SYSTEM",
    "USER",
    "ByteDecoder",
    "ByteTokenizer",
    "TokenizerError",
]

ANY_U32 = 2**32
"""A vocabulary that takes every id of a real model: what events and block hashes hold in four bytes."""


class ByteTokenizer:
    """A `Tokenizer`. Ids in ``[VOCABULARY, vocab_size)`` may stand in prompts, and mean nothing."""

    name = NAME
    eos_token_ids = (EOS, END)

    def __init__(self, *, vocab_size: int = VOCABULARY) -> None:
        self.vocab_size = vocab_size

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """See `Tokenizer`; the one special token is BOS."""
        try:
            return text_ids(text, special=special)
        except ByteRuleError as error:
            raise TokenizerError(str(error)) from None

    def apply_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        arguments: Mapping[str, Any] | None = None,
        open_answer: bool = True,
    ) -> list[int]:
        """See `Tokenizer`; template arguments have no place in these rules."""
        try:
            return conversation_ids(messages, open_answer=open_answer)
        except ByteRuleError as error:
            raise TokenizerError(str(error)) from None

    def decode(self, ids: Iterable[int]) -> str:
        """Text of ``ids``, markers dropped.

        Raises:
            TokenizerError: an id outside the vocabulary.
        """
        decoder = self.decoder()
        return decoder.feed(ids) + decoder.finish()

    def decoder(self) -> ByteDecoder:
        """A decoder for an answer that arrives in parts."""
        return ByteDecoder(vocab_size=self.vocab_size)


class ByteDecoder:
    """A `Decoder`."""

    def __init__(self, *, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def feed(self, ids: Iterable[int]) -> str:
        """The text that ``ids`` complete; a character whose bytes are not all there yet is kept back."""
        return self._decoder.decode(bytes(self._bytes_of(ids)))

    def finish(self) -> str:
        """The end of the answer: U+FFFD if it broke off inside a character, else nothing."""
        return self._decoder.decode(b"", final=True)

    def _bytes_of(self, ids: Iterable[int]) -> Iterable[int]:
        for token in ids:
            if not 0 <= token < self._vocab_size:
                raise TokenizerError(f"token id {token} is outside the vocabulary of {self._vocab_size}")
            if token < BOS:
                yield token
