"""From the lanes' threads to the event loop: outputs are carried over in one wake-up for all that wait."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial

from engine.request import Output

__all__ = ["Mailbox", "Mailroom"]


class Mailbox:
    """Outputs of one HTTP request's prompts, read by its handler. Bounded by the tokens those prompts may yield."""

    def __init__(self) -> None:
        self._letters: list[tuple[int, Output]] = []
        self._arrived = asyncio.Event()

    def put(self, index: int, output: Output) -> None:
        """Add an output of prompt ``index``; event loop's thread only."""
        self._letters.append((index, output))
        self._arrived.set()

    async def take(self) -> list[tuple[int, Output]]:
        """Everything that has arrived since the last call, at least one output, in order."""
        await self._arrived.wait()
        self._arrived.clear()
        letters, self._letters = self._letters, []
        return letters


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
