"""A language for prompts: words that are one token each in a byte-level BPE tokenizer of its own.

So a text of any number of tokens can be written, its ids are known without tokenizing it, and whoever does tokenize it
has the work that it has with a real model: five characters a token, and a vocabulary in a ``tokenizer.json``.
``TURN`` is a special token, as chat templates put between turns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path

import tokenizers
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, trainers

__all__ = ["TURN", "Lexicon", "write_lexicon"]

TURN = "<|turn|>"
FILE = "tokenizer.json"
_SYLLABLES = [consonant + vowel for consonant in "bdfgklmnprst" for vowel in "aeio"]


def _words() -> Iterator[str]:
    """Distinct words of two syllables, in a fixed order."""
    return map("".join, product(_SYLLABLES, repeat=2))


def write_lexicon(folder: Path) -> None:
    """Train the tokenizer, a second's work, and put it into ``folder``."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=20_000, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([f" {word}" for word in _words()], trainer)
    tokenizer.add_special_tokens([AddedToken(TURN, special=True, normalized=False)])
    tokenizer.save(str(folder / FILE))


class Lexicon:
    """Reads ``folder``, where ``write_lexicon`` has been. ``words`` are those that are one token after a space."""

    def __init__(self, folder: Path) -> None:
        self._tokenizer = tokenizers.Tokenizer.from_file(str(folder / FILE))
        vocabulary = self._tokenizer.get_vocab()
        self._ids = {word: vocabulary[f"Ġ{word}"] for word in _words()}
        self._ids[TURN] = vocabulary[TURN]
        self.words: Sequence[str] = [*self._ids][:-1]

    def text(self, words: Sequence[str]) -> str:
        """Words, and turns between them, as a text of as many tokens."""
        return "".join(word if word == TURN else f" {word}" for word in words)

    def ids(self, text: str) -> list[int]:
        """Token ids of any text; of one that ``text`` wrote, by looking its words up."""
        try:
            return [self._ids[word] for word in text.replace(TURN, f" {TURN}").split(" ")[1:]]
        except KeyError:
            return list(self._tokenizer.encode(text).ids)
