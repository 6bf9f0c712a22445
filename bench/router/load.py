"""Sends prepared requests, one by one or many at once, and says what came back."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from bench.router.client import Answered, Connection
from bench.router.messages import Message

__all__ = ["Burst", "Hits", "Singles", "ask_in_turns", "burst", "hits"]

PHASE_SECONDS = 300.0
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
    """
    answers: list[list[Answered]] = [[] for _ in subjects]
    async with asyncio.timeout(PHASE_SECONDS):
        for turn, request in enumerate(requests):
            for place in range(len(subjects)):
                index = (place + turn) % len(subjects)
                answers[index].append(await subjects[index][turn % len(subjects[index])].ask(request))
    return [Singles([one.seconds for one in ours], [one.message for one in ours]) for ours in answers]


async def burst(subject: Sequence[Connection], requests: Sequence[bytes]) -> Burst:
    """All requests, as many at once as there are connections."""
    waiting, messages = iter(requests), list[Message]()
    started = time.perf_counter()
    async with asyncio.timeout(PHASE_SECONDS), asyncio.TaskGroup() as group:
        for connection in subject:
            group.create_task(_drain(connection, waiting, messages))
    return Burst(time.perf_counter() - started, messages)


async def _drain(connection: Connection, waiting: Iterator[bytes], messages: list[Message]) -> None:
    for request in waiting:
        messages.append((await connection.ask(request)).message)  # noqa: PERF401  (one iterator for all)


def hits(messages: Sequence[Message]) -> Hits:
    """Read the reports in the answers."""
    bodies = [message.body for message in messages]
    workers = [found[1] for body in bodies if (found := _WORKER.search(body))]
    return Hits(
        prompt_tokens=sum(_number(_PROMPT, body) for body in bodies),
        cached_tokens=sum(_number(_CACHED, body) for body in bodies),
        answers=[workers.count(worker) for worker in set(workers)],
    )


def _number(pattern: re.Pattern[bytes], body: bytes) -> int:
    found = pattern.search(body)
    assert found is not None, f"a worker's answer lost its usage on the way: {body[-300:]!r}"
    return int(found[1])
