"""Sends prepared requests, one by one or many at once, and says what came back."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from itertools import chain

import msgspec

from bench.client import RequestError
from bench.router.client import Answered, Connection
from bench.router.messages import Message

__all__ = ["Burst", "Hits", "Singles", "ask_in_turns", "burst", "hits"]

PHASE_SECONDS = 300.0
_MAX_ERROR_BYTES = 300
_PROMPT, _CACHED = re.compile(rb'"prompt_tokens":\s*(\d+)'), re.compile(rb'"cached_tokens":\s*(\d+)')
_WORKER = re.compile(rb'"system_fingerprint":\s*"([^"]+)"')


class Hits(msgspec.Struct, frozen=True, kw_only=True):
    """What workers reported: tokens of all prompts, those found cached, and answers by worker."""

    prompt_tokens: int
    cached_tokens: int
    answers: Sequence[int]

    @property
    def rate(self) -> float:
        """Share of the prompt tokens that were cached."""
        return self.cached_tokens / self.prompt_tokens

    @property
    def busiest(self) -> float:
        """Share of the answers that the busiest worker gave."""
        return max(self.answers) / sum(self.answers)


class Singles(msgspec.Struct, frozen=True):
    """Requests sent one by one: seconds of each, and its answer."""

    seconds: Sequence[float]
    messages: Sequence[Message]


class Burst(msgspec.Struct, frozen=True):
    """Requests sent at once: seconds from the first to the last answer."""

    seconds: float
    messages: Sequence[Message]


async def ask_in_turns(subjects: Sequence[Sequence[Connection]], requests: Iterable[bytes]) -> list[Singles]:
    """Each request to each subject in turn, so that what disturbs one disturbs all; one is under way at a time.

    A subject with several connections takes them in turns.

    Raises:
        RequestError: one was not answered, or they took too long.
    """
    answers: list[list[Answered]] = [[] for _ in subjects]
    async with _in_time():
        for turn, request in enumerate(requests):
            for place in range(len(subjects)):
                index = (place + turn) % len(subjects)
                answers[index].append(await subjects[index][turn % len(subjects[index])].ask(request))
    return [Singles([one.seconds for one in ours], [one.message for one in ours]) for ours in answers]


async def burst(subject: Sequence[Connection], requests: Sequence[bytes]) -> Burst:
    """All requests, as many at once as there are connections.

    Raises:
        RequestError: one was not answered, or they took too long.
    """
    waiting = iter(requests)
    started = time.perf_counter()
    async with _in_time():
        answered = await asyncio.gather(*(_drain(connection, waiting) for connection in subject))
    return Burst(time.perf_counter() - started, list(chain.from_iterable(answered)))


async def _drain(connection: Connection, waiting: Iterator[bytes]) -> list[Message]:
    return [(await connection.ask(request)).message for request in waiting]


@asynccontextmanager
async def _in_time() -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(PHASE_SECONDS):
            yield
    except TimeoutError:
        raise RequestError(f"requests had not ended after {PHASE_SECONDS:g} s") from None


def hits(messages: Sequence[Message]) -> Hits:
    """Read the reports in the answers.

    Raises:
        RequestError: an answer has none.
    """
    bodies = [message.body for message in messages]
    workers = [_said(_WORKER, body) for body in bodies]
    return Hits(
        prompt_tokens=sum(int(_said(_PROMPT, body)) for body in bodies),
        cached_tokens=sum(int(_said(_CACHED, body)) for body in bodies),
        answers=[workers.count(worker) for worker in set(workers)],
    )


def _said(pattern: re.Pattern[bytes], body: bytes) -> bytes:
    found = pattern.search(body)
    if found is None:
        raise RequestError(f"an answer lost what its worker reported on the way: {body[-_MAX_ERROR_BYTES:]!r}")
    return found[1]
