"""Token ids asked of a replica's ``POST /tokenize`` (vLLM, SGLang, ours), and remembered.

The way for models whose tokenizer is not on this host. One small request more for each new text; a replica that cannot
tokenize something is left alone for a while, and the prompt is then routed without hits.
"""

from __future__ import annotations

import time
from array import array
from collections import OrderedDict
from typing import Annotated, Any

import aiohttp
import msgspec
import xxhash

from router.choice.texts import Chat, Text

__all__ = ["RemoteTokenizer"]

MAX_REMEMBERED = 4096
MAX_REMEMBERED_IDS = 4_000_000
MAX_BODY_BYTES = 1024 * 1024
SILENCE_SECONDS = 10.0


class _Answer(msgspec.Struct):
    tokens: list[Annotated[int, msgspec.Meta(ge=0, lt=2**32)]]  # what fits in the array they are remembered in


class RemoteTokenizer:
    """Asks over a shared session. ``failures`` counts the asks that brought nothing."""

    def __init__(self, session: aiohttp.ClientSession, *, timeout: float) -> None:
        self._session = session
        self._timeout = aiohttp.ClientTimeout(total=timeout)
        self._known: OrderedDict[bytes, array[int]] = OrderedDict()
        self._ids = 0
        self._silent_until: dict[tuple[str, bool], float] = {}
        self.failures = 0

    async def ids(self, text: Text, *, url: str, model: str | None) -> list[int] | None:
        """Ids of a text or a conversation as the replica at ``url`` has them; None where it does not say.

        Texts above ``MAX_BODY_BYTES`` are not asked for: they would be sent twice, and wait for it.
        """
        body = _body(text, model)
        if len(body) > MAX_BODY_BYTES:
            return None
        name = xxhash.xxh3_128_digest(body)
        if name in self._known:
            self._known.move_to_end(name)
            return self._known[name].tolist()
        kind = (url, isinstance(text, Chat))
        if self._silent_until.get(kind, 0.0) > time.monotonic():
            return None
        ids = await self._ask(url, body)
        if ids is None:
            self.failures += 1
            self._silent_until[kind] = time.monotonic() + SILENCE_SECONDS
            return None
        self._remember(name, ids)
        return ids

    async def _ask(self, url: str, body: bytes) -> list[int] | None:
        headers = {"Content-Type": "application/json"}
        try:
            async with self._session.post(
                f"{url}/tokenize", data=body, headers=headers, timeout=self._timeout
            ) as response:
                return (
                    msgspec.json.decode(await response.read(), type=_Answer).tokens if response.status == 200 else None
                )
        except (aiohttp.ClientError, TimeoutError, OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return None

    def _remember(self, name: bytes, ids: list[int]) -> None:
        packed = array("I", ids)
        self._known[name] = packed
        self._ids += len(packed)
        while len(self._known) > MAX_REMEMBERED or self._ids > MAX_REMEMBERED_IDS:
            _, oldest = self._known.popitem(last=False)
            self._ids -= len(oldest)


def _body(text: Text, model: str | None) -> bytes:
    fields: dict[str, Any] = {} if model is None else {"model": model}
    if isinstance(text, str):
        return msgspec.json.encode({**fields, "prompt": text, "add_special_tokens": True})
    fields |= {"messages": text.messages, "add_generation_prompt": True}
    if bytes(text.tools):
        fields["tools"] = text.tools
    if bytes(text.template_kwargs):
        fields["chat_template_kwargs"] = text.template_kwargs
    return msgspec.json.encode(fields)
