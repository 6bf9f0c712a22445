"""Which tokenizer a text prompt goes through: the one named on the command line, or the one its replicas name.

``auto`` takes a replica at its word (``byte``, or a folder that is on this host too) and asks its ``/tokenize`` for the
rest. Long texts are tokenized on a thread. What cannot be tokenized is routed without hits and counted, never guessed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from itertools import count
from pathlib import Path

import msgspec

from router.choice.byte_tokenizer import ByteTokenizer
from router.choice.file_tokenizer import TokenizerFileError, load_tokenizer
from router.choice.remote_tokenizer import RemoteTokenizer
from router.choice.texts import Chat, NotTokenizableError, Text, Tokenizer

__all__ = ["AUTO", "BYTE", "OFF", "Tokenization", "TokenizerSource", "named_tokenizer"]

_LOG = logging.getLogger(__name__)
AUTO, BYTE, OFF = "auto", "byte", "off"
INLINE_CHARS = 2048
MAX_LOADED = 16


class TokenizerSource(msgspec.Struct, frozen=True):
    """A replica that serves the model in question, and what it calls its tokenizer."""

    url: str
    tokenizer: str | None


def named_tokenizer(name: str) -> Tokenizer | None:
    """The tokenizer of a command line; None for ``auto`` and ``off``. Blocking.

    Raises:
        TokenizerFileError: a path without a tokenizer that can be read.
    """
    if name in (AUTO, OFF):
        return None
    return ByteTokenizer() if name == BYTE else load_tokenizer(Path(name))


class Tokenization:
    """Token ids of text prompts. ``fixed`` serves every model; without it ``remote`` is where ``auto`` ends.

    With neither, tokenization is off. ``misses`` counts texts that got no ids.
    """

    def __init__(self, *, fixed: Tokenizer | None, remote: RemoteTokenizer | None) -> None:
        self._fixed = fixed
        self._remote = remote
        self._loaded: dict[str, Tokenizer | None] = {BYTE: ByteTokenizer()}
        self._turns = count()
        self.misses = 0

    async def ids(self, text: Text, *, model: str | None, sources: Sequence[TokenizerSource]) -> list[int] | None:
        """Ids of a text or a conversation; None where nobody here can tell."""
        if self._fixed is None and self._remote is None:
            return None
        source = sources[next(self._turns) % len(sources)]
        tokenizer = self._fixed or await self._of(source)
        ids = None if tokenizer is None else await _encode(tokenizer, text)
        if ids is None and self._fixed is None and self._remote is not None:
            ids = await self._remote.ids(text, url=source.url, model=model)
        self.misses += ids is None
        return ids

    async def _of(self, source: TokenizerSource) -> Tokenizer | None:
        """The tokenizer a replica names, where its files are here. Loaded once, a failure is remembered too."""
        name = source.tokenizer
        if name is None:
            return None
        if name not in self._loaded:
            if len(self._loaded) >= MAX_LOADED:
                return None
            self._loaded[name] = await asyncio.to_thread(_load_if_here, name)
        return self._loaded[name]


def _load_if_here(name: str) -> Tokenizer | None:
    path = Path(name)
    if not path.is_absolute() or not path.exists():
        return None
    try:
        return load_tokenizer(path)
    except TokenizerFileError as error:
        _LOG.warning("tokenizer named by a replica: %s; its /tokenize is asked instead", error)
        return None


async def _encode(tokenizer: Tokenizer, text: Text) -> list[int] | None:
    size = len(bytes(text.messages)) if isinstance(text, Chat) else len(text)
    try:
        if size <= INLINE_CHARS:
            return _encode_now(tokenizer, text)
        return await asyncio.to_thread(_encode_now, tokenizer, text)
    except NotTokenizableError as error:
        _LOG.debug("not tokenized: %s", error)
        return None


def _encode_now(tokenizer: Tokenizer, text: Text) -> list[int]:
    return tokenizer.encode_chat(text) if isinstance(text, Chat) else tokenizer.encode(text)
