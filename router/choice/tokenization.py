"""Which tokenizer a text prompt goes through: the one named on the command line, or the one its replicas name.

``auto`` takes a replica at its word (``byte``, or a folder that is on this host too) and asks its ``/tokenize`` for the
rest. What takes a while is done on a thread. What has no ids here is routed without hits and counted, never guessed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from itertools import count
from math import inf
from pathlib import Path

import msgspec

from contract.byte_tokenizer import NAME as BYTE
from router.choice.byte_tokenizer import ByteTokenizer
from router.choice.file_tokenizer import load_tokenizer
from router.choice.local_tokenizers import LocalTokenizers, TokenizerSource
from router.choice.remote_tokenizer import RemoteTokenizer
from router.choice.send_ids import SendIds
from router.choice.texts import Chat, NotTokenizableError, Text, Tokenizer, TooMuchNewError

__all__ = ["AUTO", "BYTE", "OFF", "Tokenization", "Tokenized", "named_tokenizer"]

_LOG = logging.getLogger(__name__)
AUTO, OFF = "auto", "off"
INLINE_CHARS, INLINE_NEW_CHARS = 128 * 1024, 8 * 1024
"""Longer texts, and those of which more is new, go to a thread: everybody would wait a millisecond for them."""


class Tokenized(msgspec.Struct, frozen=True):
    """Ids of a text; ``sendable``: an engine may be given them in its place."""

    ids: Sequence[int]
    sendable: bool


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

    def __init__(
        self, *, fixed: Tokenizer | None, remote: RemoteTokenizer | None, send_ids: SendIds = SendIds.AUTO
    ) -> None:
        self._fixed = fixed
        self._remote = remote
        self._local = None if remote is None else LocalTokenizers(remote)
        self._send_ids = send_ids
        self._turns = count()
        self.misses = 0

    async def tokenize(self, text: Text, *, model: str | None, sources: Sequence[TokenizerSource]) -> Tokenized | None:
        """Ids of a text or a conversation; None where nobody here can tell."""
        if self._fixed is None and self._remote is None:
            return None
        tokenized = await (self._by_fixed(text) if self._fixed is not None else self._by_replica(text, model, sources))
        self.misses += tokenized is None
        return tokenized

    async def _by_fixed(self, text: Text) -> Tokenized | None:
        assert self._fixed is not None, "asked only where a tokenizer was named"
        return self._result(await _encode(self._fixed, text), confirmed=False)

    async def _by_replica(self, text: Text, model: str | None, sources: Sequence[TokenizerSource]) -> Tokenized | None:
        assert self._local is not None, "asked only where no tokenizer was named"
        assert self._remote is not None, "there is one for the local ones to be confirmed by"
        source = sources[next(self._turns) % len(sources)]
        local = await self._local.of(source, model=model)
        if local is not None:
            ids = await _encode(local.tokenizer, text)
            if ids is not None:
                return self._result(ids, confirmed=local.confirmed)
        return self._result(await self._remote.ids(text, url=source.url, model=model), confirmed=True)

    def _result(self, ids: Sequence[int] | None, *, confirmed: bool) -> Tokenized | None:
        if ids is None:
            return None
        sendable = {SendIds.AUTO: confirmed, SendIds.ALWAYS: True, SendIds.NEVER: False}[self._send_ids]
        return Tokenized(ids, sendable)


async def _encode(tokenizer: Tokenizer, text: Text) -> Sequence[int] | None:
    size = len(bytes(text.messages)) if isinstance(text, Chat) else len(text)
    try:
        if size <= INLINE_CHARS:
            try:
                return _encode_now(tokenizer, text, INLINE_NEW_CHARS)
            except TooMuchNewError:
                pass
        return await asyncio.to_thread(_encode_now, tokenizer, text, inf)
    except NotTokenizableError as error:
        _LOG.debug("not tokenized: %s", error)
        return None


def _encode_now(tokenizer: Tokenizer, text: Text, most_new: float) -> Sequence[int]:
    if isinstance(text, Chat):
        return tokenizer.encode_chat(text, most_new=most_new)
    return tokenizer.encode(text, most_new=most_new)
