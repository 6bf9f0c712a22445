"""Plays a workload through an ``Ask``: chats as fast as their answers come, traces by their timestamps.

Concurrency is bounded in both; what is sent does not depend on how fast the fleet is, but for the answers that a chat
quotes back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from random import Random

import msgspec

from bench.chat import Conversation
from bench.client import CHAT_PATH, COMPLETIONS_PATH
from bench.mooncake import prompt_tokens
from bench.tally import Ask
from router.trace.mooncake import TraceRow

__all__ = ["TraceTempo", "play_chats", "play_trace", "send_on_time", "turn_order"]

_ENCODE = msgspec.json.encode


class _Chat:
    """A conversation under way: what was said so far. Its turns wait for each other."""

    def __init__(self, conversation: Conversation) -> None:
        self.broken = False
        self.lock = asyncio.Lock()
        self._turns = iter(conversation.turns)
        self._opening = [{"role": "system", "content": conversation.system}] if conversation.system else []
        self._messages = list(self._opening)

    async def next_turn(self, ask: Ask, *, model: str) -> None:
        """Say the next thing and remember the answer; a chat that lost an answer says no more."""
        async with self.lock:
            if self.broken:
                return
            turn = next(self._turns)
            if turn.fresh:
                self._messages = list(self._opening)
            self._messages.append({"role": "user", "content": turn.user})
            body = _body(model, turn.max_tokens, stream=turn.stream, messages=self._messages)
            reply = await ask(CHAT_PATH, body)
            self.broken = reply is None
            if reply is not None:
                self._messages.append({"role": "assistant", "content": reply.text})


def turn_order(conversations: Sequence[Conversation], *, seed: int) -> list[int]:
    """Which conversation speaks next, by index: all turns of all conversations, shuffled together."""
    order = [index for index, conversation in enumerate(conversations) for _ in conversation.turns]
    Random(seed).shuffle(order)
    return order


async def play_chats(
    conversations: Sequence[Conversation], ask: Ask, *, model: str, concurrency: int, seed: int
) -> None:
    """Play all turns, ``concurrency`` at a time, in an order fixed by the seed."""
    chats = [_Chat(conversation) for conversation in conversations]
    upcoming = iter(turn_order(conversations, seed=seed))
    async with asyncio.TaskGroup() as group:
        for _ in range(concurrency):
            group.create_task(_take_turns(upcoming, chats, ask, model))


async def _take_turns(upcoming: Iterator[int], chats: Sequence[_Chat], ask: Ask, model: str) -> None:
    for index in upcoming:
        await chats[index].next_turn(ask, model=model)


class TraceTempo(msgspec.Struct, frozen=True, kw_only=True):
    """How a trace is played: ``speedup`` divides its timestamps, answers stop at ``max_output`` tokens."""

    speedup: float
    max_output: int
    concurrency: int
    seed: int


async def play_trace(rows: Sequence[TraceRow], ask: Ask, *, model: str, tempo: TraceTempo) -> None:
    """Send each row at its time, streamed."""
    begin = rows[0].timestamp
    bodies = (((row.timestamp - begin) / 1000 / tempo.speedup, _trace_body(row, model, tempo)) for row in rows)
    await send_on_time(bodies, ask, concurrency=tempo.concurrency)


async def send_on_time(bodies: Iterable[tuple[float, bytes]], ask: Ask, *, concurrency: int) -> None:
    """Send each body to completions so many seconds after the start.

    One that has to wait for a free place leaves late, which the tally notes.
    """
    clock = asyncio.get_running_loop().time
    places = asyncio.Semaphore(concurrency)
    start = clock()
    async with asyncio.TaskGroup() as group:
        for seconds, body in bodies:
            due = start + seconds
            await asyncio.sleep(due - clock())
            await places.acquire()
            ask.tally.note_late(clock() - due)
            task = group.create_task(ask(COMPLETIONS_PATH, body))
            task.add_done_callback(lambda _: places.release())


def _trace_body(row: TraceRow, model: str, tempo: TraceTempo) -> bytes:
    max_tokens = max(1, min(row.output_length, tempo.max_output))
    return _body(model, max_tokens, stream=True, prompt=prompt_tokens(row, seed=tempo.seed))


def _body(model: str, max_tokens: int, *, stream: bool, **prompt: object) -> bytes:
    """Greedy, to the full length: the same prompts give the same answers under every policy."""
    common = {"model": model, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True, "stream": stream}
    options = {"stream_options": {"include_usage": True}} if stream else {}
    return _ENCODE({**common, **options, **prompt})
