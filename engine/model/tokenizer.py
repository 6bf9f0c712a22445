"""What the server asks of a tokenizer, whatever model it belongs to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

__all__ = ["Decoder", "Tokenizer", "TokenizerError"]


class TokenizerError(ValueError):
    """Text, messages or ids that the tokenizer cannot take; the message is one line."""


class Decoder(Protocol):
    """Decodes ids as they come. The parts, joined, are what ``Tokenizer.decode`` makes of all ids at once."""

    def feed(self, ids: Iterable[int]) -> str:
        """The text that ``ids`` complete; a character whose bytes are not all there yet is kept back."""
        ...

    def finish(self) -> str:
        """The end of the answer: what was kept back, whole or not."""
        ...


class Tokenizer(Protocol):
    """Text to token ids and back. Any number of threads may use it at once."""

    @property
    def name(self) -> str:
        """What a router can find it by: ``byte``, or the absolute path of its files."""
        ...

    @property
    def vocab_size(self) -> int:
        """Ids are in ``[0, vocab_size)``."""
        ...

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Ids of a text prompt, with the tokens that the model puts around one unless ``special`` is off.

        Raises:
            TokenizerError: the text has no UTF-8 form (a lone surrogate).
        """
        ...

    def apply_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        arguments: Mapping[str, Any] | None = None,
        open_answer: bool = True,
    ) -> list[int]:
        """Ids of a conversation (OpenAI's ``messages``), up to where the assistant's answer starts.

        ``arguments`` are variables for the model's chat template. Without ``open_answer`` nothing follows the last
        message.

        Raises:
            TokenizerError: messages that the model has no form for.
        """
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ``ids``, special tokens dropped.

        Raises:
            TokenizerError: an id outside the vocabulary.
        """
        ...

    def decoder(self) -> Decoder:
        """A decoder for an answer that arrives in parts."""
        ...
