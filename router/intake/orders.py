"""What a lane's stream orders of the index, done in that order, and never so much at once that others have to wait.

Small batches are applied on the spot. A large one (a snapshot of a whole cache), and what is ordered behind it, is
applied in pieces, one turn of the event loop after the other. Whoever feeds the stream looks at ``busy`` before it goes
on, so what waits here is no more than what one decision ordered.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator

from router.intake.index import BlockIndex, LaneHandle
from router.intake.slices import BLOCKS_A_SLICE, is_small, slices, weight
from router.intake.stream import Apply, Clear

__all__ = ["Orders"]


class Orders:
    """The orders of one lane; ``busy`` while some of them wait."""

    def __init__(
        self,
        index: BlockIndex,
        handle: LaneHandle,
        *,
        on_done: Callable[[], None],
        on_fault: Callable[[Exception], None],
    ) -> None:
        """``on_done`` is called when nothing waits any more, ``on_fault`` when what waited could not be done."""
        self._index = index
        self._handle = handle
        self._on_done = on_done
        self._on_fault = on_fault
        self._waiting: deque[Apply | Clear] = deque()
        self._steps: Iterator[int] = iter(())
        self._turn: asyncio.Handle | None = None
        self.busy = False
        self._done = asyncio.Event()
        self._done.set()

    async def free(self) -> None:
        """Let others have a turn, and return when nothing waits."""
        await asyncio.sleep(0)
        await self._done.wait()

    def do(self, order: Apply | Clear) -> None:
        """Do what is ordered: now, or behind what waits."""
        if not self.busy:
            if isinstance(order, Clear):
                self._index.clear(self._handle)
                return
            if is_small(order.batch):
                self._index.apply(self._handle, order.batch)
                return
            self.defer()
        self._waiting.append(order)

    def defer(self) -> None:
        """Let what is ordered from now on wait for its turn: it will be much, if each of it is little."""
        if not self.busy:
            self.busy = True
            self._steps = self._work()
            self._done.clear()
            self._next_turn()

    def close(self) -> None:
        """Drop what waits."""
        if self._turn is not None:
            self._turn.cancel()
        self._waiting.clear()

    def _next_turn(self) -> None:
        self._turn = asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        try:
            done = 0
            for step in self._steps:
                done += step
                if done >= BLOCKS_A_SLICE:
                    self._next_turn()
                    return
        except Exception as error:  # the top of a turn: the lane must show it
            self._on_fault(error)
            return
        self.busy = False
        self._done.set()
        self._on_done()

    def _work(self) -> Iterator[int]:
        """Do what waits; after each step, what it weighed."""
        while self._waiting:
            order = self._waiting.popleft()
            if isinstance(order, Clear):
                self._index.clear(self._handle)
                yield BLOCKS_A_SLICE
                continue
            for piece in slices(order.batch):
                self._index.apply(self._handle, piece)
                yield weight(piece)
