"""Token ids of words that are met again and again: of a text in a known vocabulary nothing is tokenized.

A word is remembered when it is met for the second time, since most of what comes once does not come again; until then
it is tokenized together with its neighbours, which costs a fourth. Bounded: what was not met while twice as many others
were is forgotten.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from threading import Lock
from typing import NamedTuple, TypeAlias, cast

__all__ = ["Encode", "WordIds"]

MAX_WORDS = 32_768
"""Of each of two generations; with words of at most ``MAX_CHARS`` characters some 10 MB together."""

MAX_CHARS = 32

Encode: TypeAlias = "Callable[[Sequence[str]], Sequence[array[int]]]"
"""Token ids of each of some texts."""


class _Run(NamedTuple):
    """Words of a text that are tokenized together. ``keep``: it is one word, to be remembered."""

    start: int
    stop: int
    keep: bool


class WordIds:
    """Any number of threads may use it at once. ``encode`` asks the tokenizer."""

    def __init__(self, encode: Encode, *, max_words: int = MAX_WORDS) -> None:
        self._encode = encode
        self._max_words = max_words
        self._known: dict[str, bytes] = {}
        self._older: dict[str, bytes] = {}
        self._met: set[str] = set()
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._known) + len(self._older)

    def of(self, words: Sequence[str]) -> array[int]:
        """Ids of the text that the words make, given that they are its words' ids, one after the other."""
        found = [*map(self._known.get, words)]
        return array("I", b"".join(self._filled(words, found) if None in found else cast(list[bytes], found)))

    def _filled(self, words: Sequence[str], found: list[bytes | None]) -> list[bytes]:
        """With what was missing: a run's ids in the place of its first word."""
        with self._lock:
            runs = self._runs(words, found)
        texts = ["".join(words[run.start : run.stop]) for run in runs]
        distinct = [*dict.fromkeys(texts)]
        ids = dict(zip(distinct, (new.tobytes() for new in self._encode(distinct)), strict=True)) if texts else {}
        for run, text in zip(runs, texts, strict=True):
            found[run.start] = ids[text]
        with self._lock:
            for run, text in zip(runs, texts, strict=True):
                if run.keep:
                    self._remember(text, ids[text])
        return [new for new in found if new is not None]

    def _runs(self, words: Sequence[str], found: list[bytes | None]) -> list[_Run]:
        """What must be tokenized; words of the older generation are put in."""
        runs: list[_Run] = []
        for place, word in enumerate(words):
            if found[place] is not None:
                continue
            older = self._older.get(word)
            if older is not None:
                found[place] = older
                self._remember(word, older)
                continue
            keep = word in self._met
            if not keep and runs and runs[-1].stop == place and not runs[-1].keep:
                runs[-1] = _Run(runs[-1].start, place + 1, keep=False)
            else:
                runs.append(_Run(place, place + 1, keep))
            if not keep and len(word) <= MAX_CHARS:
                self._meet(word)
        return runs

    def _meet(self, word: str) -> None:
        if len(self._met) >= 2 * self._max_words:
            self._met.clear()
        self._met.add(word)

    def _remember(self, word: str, ids: bytes) -> None:
        if len(self._known) >= self._max_words:
            self._older, self._known = self._known, {}
        self._known[word] = ids
