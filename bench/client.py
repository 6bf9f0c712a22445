"""Asks OpenAI-shaped endpoints and measures: time to first token, time to the end, what the engine says was cached.

One client serves many concurrent requests over one connection pool. It knows HTTP and SSE, not what is asked or why.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import msgspec

from router.front.headers import PIN_HEADER, REPLICA_HEADER

__all__ = ["CHAT_PATH", "COMPLETIONS_PATH", "Answer", "BenchClient", "Reply", "RequestError"]

CHAT_PATH = "/v1/chat/completions"
COMPLETIONS_PATH = "/v1/completions"
MAX_ERROR_CHARS = 300
_DATA = b"data:"
_DONE = b"[DONE]"


class RequestError(RuntimeError):
    """A request that did not end well, in one line."""


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """One finished answer. Times in seconds from sending; ``ttft`` only where the answer was streamed.

    ``replica`` is the base URL that answered, as the router names it; None where no router was asked.
    """

    replica: str | None
    text: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    ttft: float | None
    elapsed: float


class _PromptDetails(msgspec.Struct):
    cached_tokens: int


class _Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int = 0
    prompt_tokens_details: _PromptDetails | None = None


class _Message(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    message: _Message | None = None
    delta: _Message | None = None
    finish_reason: str | None = None

    @property
    def content(self) -> str:
        said = self.message or self.delta
        return self.text or (said.content if said else None) or ""


class _Part(msgspec.Struct):
    """A whole answer, or one chunk of a streamed one."""

    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


_PART = msgspec.json.Decoder(_Part)


class Answer:
    """An answer as its parts arrive. Pure: it is handed the clock's readings."""

    def __init__(self) -> None:
        self.first_at: float | None = None
        self.finished = False
        self._texts: list[str] = []
        self._usage: _Usage | None = None

    def add(self, raw: bytes, *, at: float) -> None:
        """Take in one JSON part.

        Raises:
            RequestError: it is not JSON of a known shape, or an error that the server sent in the stream.
        """
        try:
            part = _PART.decode(raw)
        except msgspec.MsgspecError as error:
            raise RequestError(f"answer cannot be read: {error}") from None
        if part.error is not None:
            raise RequestError(f"error in the answer: {_brief(part.error)}")
        self._usage = part.usage or self._usage
        for choice in part.choices:
            self._texts.append(choice.content)
            self.finished = self.finished or choice.finish_reason is not None
        if part.choices and self.first_at is None:
            # The chunk that opens a turn counts: engines send it with the first token, whose text may have to wait
            # for the rest of a character.
            self.first_at = at

    def reply(self, *, replica: str | None, sent_at: float, ended_at: float, streamed: bool) -> Reply:
        """The finished answer.

        Raises:
            RequestError: it was cut off, or lacks what the contract promises of it.
        """
        if not self.finished or self.first_at is None:
            raise RequestError("answer ended without a finish_reason")
        if self._usage is None or self._usage.prompt_tokens_details is None:
            raise RequestError("answer carries no usage.prompt_tokens_details.cached_tokens")
        return Reply(
            replica=replica,
            text="".join(self._texts),
            prompt_tokens=self._usage.prompt_tokens,
            cached_tokens=self._usage.prompt_tokens_details.cached_tokens,
            completion_tokens=self._usage.completion_tokens,
            ttft=self.first_at - sent_at if streamed else None,
            elapsed=ended_at - sent_at,
        )


class BenchClient:
    """Sends request bodies to one base URL; use as many at once as the session's connector allows.

    ``pin`` is the replica that a router is to send all of them to.
    """

    def __init__(self, session: aiohttp.ClientSession, base_url: str, *, pin: str | None = None) -> None:
        self._session = session
        self._base_url = base_url
        self._headers = {"Content-Type": "application/json"} | ({} if pin is None else {PIN_HEADER: pin})

    async def ask(self, path: str, body: bytes) -> Reply:
        """POST a JSON body and read the answer to its end, streamed or not.

        Raises:
            RequestError: refused, timed out, cut off, or unreadable; it names the URL.
        """
        url = self._base_url + path
        try:
            return await self._ask(url, body)
        except RequestError as error:
            raise RequestError(f"{url}: {error}") from None
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:  # ValueError: a line beyond the read buffer
            raise RequestError(f"{url}: {type(error).__name__} {error}") from None

    async def _ask(self, url: str, body: bytes) -> Reply:
        answer, sent_at = Answer(), time.perf_counter()
        async with self._session.post(url, data=body, headers=self._headers) as response:
            if response.status != 200:
                raise RequestError(f"status {response.status}: {_brief(await response.text())}")
            streamed = response.content_type == "text/event-stream"
            async for part in _events(response) if streamed else _whole(response):
                answer.add(part, at=time.perf_counter())
        replica, ended_at = response.headers.get(REPLICA_HEADER), time.perf_counter()
        return answer.reply(replica=replica, sent_at=sent_at, ended_at=ended_at, streamed=streamed)


async def _whole(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    yield await response.read()


async def _events(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """The data of each server-sent event but the last, [DONE]; reads to the end, so that the connection is reused."""
    async for line in response.content:
        data = line.removeprefix(_DATA).strip()
        if line.startswith(_DATA) and data != _DONE:
            yield data


def _brief(what: object) -> str:
    return " ".join(str(what).split())[:MAX_ERROR_CHARS]
