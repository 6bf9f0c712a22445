"""Where a long text may be cut between two words, each stretch then giving the tokens that it has in the whole.

Most tokenizers first split a text into words, from left to right and looking back at nothing; what they do next they do
to each word by itself. Where such a split ends a word between a letter and a space that another letter follows, a cut
there changes nothing. Whether it does is told by the kinds of a tokenizer's parts, and tried on a text that has
something of everything; a tokenizer with a part of another kind is not cut.

A cut depends only on what stands before it: texts with a beginning in common have its stretches in common.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import tokenizers

__all__ = ["Stretches"]

STRETCH_CHARS = 1024
"""What is new of a text costs half of this more, on average, than it would alone."""

_BETWEEN_WORDS = re.compile("(?<=[A-Za-z]) (?=[A-Za-z])")
_WORD = re.compile(" [A-Za-z]++(?= [A-Za-z])|.+?(?<=[A-Za-z])(?= [A-Za-z])|.+", re.DOTALL)
"""From one cut to the next: most words are alone."""

_LOOKS_AROUND = re.compile(r"\(\?<|\\[AbBGzZ]|(?<!\[)\^|\$")
"""In a pattern: what depends on more than the text from where it begins."""

_NORMALIZERS = {"NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents"}
_SPLITTERS = {"ByteLevel", "Digits", "Split"}
_PROBE = (
    "One word, two words; it's I'LL don't a b  c   d\te\n\nf g\r\nh (i) [j k] l-m n_o p.q http://r/s?t=u v, 1 2 34 "
    "567 8901 x1 y 2z A BC Def gHI jKl MN op! Qr? 'st' \"uv\" w—x y z Füße Öl né e\u0301t Привет мир и all 世界 "
    "the 🎉 end A\u00a0b c\u3000d e ﬁ x ² y if x == 1: return {'a': [b, c]} # d e\n    def f(x):  \n        pass  \n "
)


class Stretches:
    """Of one tokenizer."""

    def __init__(self, tokenizer: tokenizers.Tokenizer) -> None:
        self._cuts = _parts_are_known(tokenizer) and _probe_agrees(tokenizer)

    def words(self, text: str) -> list[str] | None:
        """The text, cut wherever that is sure, most words for themselves; None where it is nowhere sure."""
        return _WORD.findall(text) if self._cuts else None

    def of(self, text: str) -> Iterator[str]:
        """The text, cut where that is sure; in one where it is short, or nowhere sure."""
        start = 0
        while self._cuts and len(text) - start > STRETCH_CHARS:
            cut = _next_cut(text, start + STRETCH_CHARS)
            if cut < 0:
                break
            yield text[start:cut]
            start = cut
        yield text[start:]


def _next_cut(text: str, start: int) -> int:
    """Where the text may be cut next; -1 where nowhere. Spaces are found quicker than they are judged."""
    space = text.find(" ", start)
    while space >= 0 and not _BETWEEN_WORDS.match(text, space):
        space = text.find(" ", space + 1)
    return space


def _parts_are_known(tokenizer: tokenizers.Tokenizer) -> bool:
    before, splits = _parts(tokenizer.normalizer), _parts(tokenizer.pre_tokenizer)
    added = tokenizer.get_added_tokens_decoder().values()
    return (
        bool(splits)
        and all(part.get("type") in _NORMALIZERS for part in before)
        and all(map(_ends_words, splits))
        and not any(entry.normalized and _reaches_over_words(entry) for entry in added)
    )


def _parts(component: Any) -> list[Mapping[str, Any]]:
    """A component's parts, as the library writes them to files."""
    if component is None:
        return []
    part: dict[str, Any] = msgspec.json.decode(component.__getstate__())
    if part["type"] != "Sequence":
        return [part]
    return [*part.get("normalizers", ()), *part.get("pretokenizers", ())]


def _ends_words(part: Mapping[str, Any]) -> bool:
    """Whether a part is one of those that go from left to right."""
    pattern = part.get("pattern") or {}
    return part.get("type") in _SPLITTERS and not _LOOKS_AROUND.search(str(pattern.get("Regex", "")))


def _reaches_over_words(entry: tokenizers.AddedToken) -> bool:
    """Whether a token that is looked for in the text may hold a cut, or depends on what stands beside it."""
    return bool(_BETWEEN_WORDS.search(entry.content)) or entry.lstrip or entry.rstrip or entry.single_word


def _probe_agrees(tokenizer: tokenizers.Tokenizer) -> bool:
    def words(text: str) -> list[str]:
        return [word for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text)]

    whole = words(_PROBE)
    return all(
        words(_PROBE[: cut.start()]) + words(_PROBE[cut.start() :]) == whole for cut in _BETWEEN_WORDS.finditer(_PROBE)
    )
