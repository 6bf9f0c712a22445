"""From the lanes' threads to the event loop: outputs are carried over in one wake-up for all that wait."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial

import msgspec

from engine.request import Output

__all__ = ["Mailbox", "Mailroom"]


class Mailbox:
    """What has come for one HTTP request and was not read yet: one output for each of its prompts at most.

    Outputs of one prompt that wait together become one, so a slow reader gets fewer and larger ones.
    """

    def __init__(self) -> None:
        self._letters: dict[int, Output] = {}
        self._arrived = asyncio.Event()

    def put(self, index: int, output: Output) -> None:
        """Add an output of prompt ``index``; event loop's thread only."""
        waiting = self._letters.get(index)
        self._letters[index] = output if waiting is None else _joined(waiting, output)
        self._arrived.set()

    async def take(self) -> dict[int, Output]:
        """What has arrived since the last call, by prompt; for one prompt at least."""
        await self._arrived.wait()
        self._arrived.clear()
        letters, self._letters = self._letters, {}
        return letters


def _joined(earlier: Output, later: Output) -> Output:
    return msgspec.structs.replace(later, token_ids=earlier.token_ids + later.token_ids)


class Mailroom:
    """Takes outputs from any thread and delivers them to mailboxes on the event loop's."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: deque[tuple[Mailbox, int, Output]] = deque()
        self._called = False

    def address(self, box: Mailbox, index: int) -> Callable[[Output], None]:
        """What to call with each output of prompt ``index``, from any thread."""
        return partial(self._post, box, index)

    def _post(self, box: Mailbox, index: int, output: Output) -> None:
        self._waiting.append((box, index, output))
        if not self._called:
            self._called = True
            self._loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        self._called = False  # before the queue is emptied: what is posted from here on calls again
        while self._waiting:
            box, index, output = self._waiting.popleft()
            box.put(index, output)
