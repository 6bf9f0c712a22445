"""Token ids of a text, of which only what is new is tokenized.

A tokenizer first cuts a text at the added tokens that it looks for before any normalizing, and treats each piece by
itself: no merge reaches over such a cut. So the pieces between them can be remembered, and a conversation that grows by
a turn costs one turn. Long pieces are cut again, between words, where a tokenizer allows that (`stretches`): a prompt
whose beginning is known costs its end, also where no such token stands in it. Each new piece is tokenized behind the
token that stands before it, since some pre-tokenizers treat the beginning of a text in a way of its own.

Where the cut itself depends on what stands beside it (``lstrip``, ``rstrip`` and ``single_word`` tokens), the text is
tokenized whole. What a model puts around a prompt is found by trying; where trying gives no clear answer, such texts
are tokenized whole too.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator, Sequence
from math import inf

import tokenizers

from router.choice.segment_cache import SegmentCache
from router.choice.stretches import Stretches
from router.choice.texts import TooMuchNewError
from router.choice.word_ids import WordIds

__all__ = ["SegmentedTokenizer"]

_NONE = -1
_NOTHING: tuple[list[int], list[int]] = ([], [])
_PROBES = ("a", "A b", "0")
_Piece = tuple[int, str]
"""The token before a piece, or ``_NONE``, and its text."""


class SegmentedTokenizer:
    """Any number of threads may use it at once. ``cache_bytes`` bounds what is remembered.

    ``pieces_tokenized`` counts pieces that were not remembered.
    """

    def __init__(self, tokenizer: tokenizers.Tokenizer, *, cache_bytes: int) -> None:
        self._tokenizer = tokenizer
        self._cuts = _Cuts(tokenizer)
        self._stretches = Stretches(tokenizer)
        self._cache = SegmentCache(max_bytes=cache_bytes)
        self._words = WordIds(self._ids_of)
        self._around = _find_around(tokenizer)
        self.pieces_tokenized = 0

    def encode(self, text: str, *, special: bool, most_new: float = inf) -> array[int]:
        """Exactly what the tokenizer makes of the whole text; ``special`` adds what the model puts around a prompt.

        Raises:
            TooMuchNewError: more than ``most_new`` characters are not remembered.
        """
        around = self._around if special else _NOTHING
        pieces = None if around is None else self._cuts.pieces(text)
        if around is None or pieces is None:
            if len(text) > most_new:
                raise TooMuchNewError
            return array("I", self._tokenizer.encode(text, add_special_tokens=special).ids)
        before, after = around
        whole = array("I", before)
        for ids in self._pieces([stretch for piece in pieces for stretch in self._stretched(piece)], most_new):
            whole += ids
        return whole + array("I", after)

    def _stretched(self, piece: _Piece) -> Iterator[_Piece]:
        """A piece in stretches; only the first stands behind a token that cuts."""
        before, text = piece
        for stretch in self._stretches.of(text):
            yield before, stretch
            before = _NONE

    def _pieces(self, pieces: Sequence[_Piece], most_new: float) -> Iterator[array[int]]:
        """Ids of each."""
        found = [*map(self._cache.get, pieces)]
        missing = [piece for piece, ids in zip(pieces, found, strict=True) if ids is None]
        if sum(len(text) for _, text in missing) > most_new:
            raise TooMuchNewError
        self.pieces_tokenized += len(set(missing))
        for piece, ids in zip(pieces, found, strict=True):
            if ids is None:
                ids = self._encode(piece)
                self._cache.put(piece, ids)
            yield ids

    def _encode(self, piece: _Piece) -> array[int]:
        """Ids of a piece, the token before it included."""
        before, text = piece
        words = self._stretches.words(text)
        if words is None:
            return self._ids_of([self._cuts.text_of(before) + text])[0]
        if before != _NONE:
            words[:1] = [self._cuts.text_of(before) + "".join(words[:1])]
        return self._words.of(words)

    def _ids_of(self, texts: Sequence[str]) -> list[array[int]]:
        """What the tokenizer itself makes of some texts."""
        encodings = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        return [array("I", encoding.ids) for encoding in encodings]


class _Cuts:
    """Where a tokenizer cuts a text before it looks at anything else."""

    def __init__(self, tokenizer: tokenizers.Tokenizer) -> None:
        added = {token: entry for token, entry in tokenizer.get_added_tokens_decoder().items() if not entry.normalized}
        texts = sorted((entry.content for entry in added.values() if entry.content), key=len, reverse=True)
        self._ids = {entry.content: token for token, entry in added.items()}
        self._texts = {token: entry.content for token, entry in added.items()}
        self._unsure = {entry.content for entry in added.values() if entry.lstrip or entry.rstrip or entry.single_word}
        self._pattern = re.compile("|".join(map(re.escape, texts))) if texts else None

    def text_of(self, token: int) -> str:
        return self._texts.get(token, "")

    def pieces(self, text: str) -> list[_Piece] | None:
        """The text in pieces, each beginning with a token that cuts, but for the first; None where that is not sure."""
        if self._pattern is None:
            return [(_NONE, text)]
        pieces, before, start = [], _NONE, 0
        for match in self._pattern.finditer(text):
            content = match.group()
            if content in self._unsure:
                return None
            if before != _NONE or match.start() > start:
                pieces.append((before, text[start : match.start()]))
            before, start = self._ids[content], match.end()
        pieces.append((before, text[start:]))
        return pieces


def _find_around(tokenizer: tokenizers.Tokenizer) -> tuple[list[int], list[int]] | None:
    """What the model puts before and after a prompt; None where that depends on the prompt, or cannot be told."""
    found = {_around(tokenizer, probe) for probe in _PROBES}
    if len(found) != 1:
        return None
    (around,) = found
    return None if around is None else (list(around[0]), list(around[1]))


def _around(tokenizer: tokenizers.Tokenizer, probe: str) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    bare = tokenizer.encode(probe, add_special_tokens=False).ids
    whole = tokenizer.encode(probe, add_special_tokens=True)
    own = [place for place, added in enumerate(whole.special_tokens_mask) if not added]
    if not own or whole.ids[own[0] : own[-1] + 1] != bare:
        return None
    return tuple(whole.ids[: own[0]]), tuple(whole.ids[own[-1] + 1 :])
