"""Tokenizers that replicas name and this host has: ``byte``, or a folder that is here under the same path.

The same path need not be the same file. So the first time a replica is asked to tokenize a probe, and a tokenizer that
gives other ids is not used. Loaded once; bounded in number.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import msgspec

from contract.byte_tokenizer import NAME as BYTE
from contract.text.tokenizer_files import TokenizerFileError
from router.choice.byte_tokenizer import ByteTokenizer
from router.choice.file_tokenizer import load_tokenizer
from router.choice.remote_tokenizer import RemoteTokenizer
from router.choice.texts import Tokenizer

__all__ = ["LocalTokenizer", "LocalTokenizers", "TokenizerSource"]

_LOG = logging.getLogger(__name__)
MAX_LOADED = 16
_GGUF = ".gguf"
"""A model file that holds its tokenizer in a form of its own, which the engine reads: it is asked."""
PROBE = "Hello, world!\n\n  def f(x):\n\treturn 12345 + x  # it's Füße, Привет, 世界 🎉"


class TokenizerSource(msgspec.Struct, frozen=True):
    """A replica that serves the model in question, and what it calls its tokenizer."""

    url: str
    tokenizer: str | None


class LocalTokenizer(msgspec.Struct, frozen=True):
    """``confirmed``: a replica gave the same ids for a probe; otherwise none has said."""

    tokenizer: Tokenizer
    confirmed: bool


class LocalTokenizers:
    """``remote`` is how replicas are asked."""

    def __init__(self, remote: RemoteTokenizer) -> None:
        self._remote = remote
        self._loaded: dict[str, Tokenizer | None] = {BYTE: ByteTokenizer()}
        self._confirmed: set[str] = set()

    async def of(self, source: TokenizerSource, *, model: str | None) -> LocalTokenizer | None:
        """The tokenizer that a replica names; None where it is not here, or is another one than the replica's."""
        name = source.tokenizer
        tokenizer = None if name is None else await self._load(name)
        if name is None or tokenizer is None:
            return None
        if name not in self._confirmed:
            theirs = await self._remote.ids(PROBE, url=source.url, model=model)
            if theirs is None:
                return LocalTokenizer(tokenizer, confirmed=False)
            if theirs != list(tokenizer.encode(PROBE)):
                _LOG.warning(
                    "tokenizer %s is not %s's, which gives other ids; its /tokenize is asked", name, source.url
                )
                self._loaded[name] = None
                return None
            self._confirmed.add(name)
        return LocalTokenizer(tokenizer, confirmed=True)

    async def _load(self, name: str) -> Tokenizer | None:
        if name not in self._loaded:
            if len(self._loaded) >= MAX_LOADED:
                return None
            self._loaded[name] = await asyncio.to_thread(_load_if_here, name)
        return self._loaded[name]


def _load_if_here(name: str) -> Tokenizer | None:
    path = Path(name)
    if not path.is_absolute() or path.suffix == _GGUF or not path.exists():
        return None
    try:
        return load_tokenizer(path)
    except TokenizerFileError as error:
        _LOG.warning("tokenizer named by a replica: %s; its /tokenize is asked instead", error)
        return None
