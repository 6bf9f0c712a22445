"""A worker's line to its parent: what the fleet is, what somebody wants of it, and whether there still is a parent."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Self

from router.workers.messages import MAX_LINE_BYTES, FleetIs, FromWorker, Hello, Wanted, decode_line, encode_line

__all__ = ["Lifeline"]


class Lifeline:
    """The standard streams of a worker. ``lost`` is set once nobody is at the other end."""

    def __init__(self, hello: Hello, lines: asyncio.StreamReader) -> None:
        self.hello = hello
        self.lost = asyncio.Event()
        self._lines = lines

    @classmethod
    async def open(cls) -> Self:
        """Hear what the parent says first.

        Raises:
            EOFError: there is no parent any more.
        """
        lines = asyncio.StreamReader(limit=MAX_LINE_BYTES)
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
        line = await lines.readline()
        if not line:
            raise EOFError
        hello = decode_line(line)
        assert isinstance(hello, Hello), "a parent says hello first"
        return cls(hello, lines)

    def tell(self, message: FromWorker) -> None:
        """Say something to the parent."""
        sys.stdout.buffer.write(encode_line(message))
        sys.stdout.buffer.flush()

    def want(self, url: str, present: bool) -> None:
        """Ask for a replica to be taken in, or out, by everybody."""
        self.tell(Wanted(url, present))

    async def follow(self, bring_in_line: Callable[[Sequence[str]], Awaitable[None]]) -> None:
        """Do what the parent says of the fleet, until it is gone."""
        try:
            while line := await self._lines.readline():
                message = decode_line(line)
                if isinstance(message, FleetIs):
                    await bring_in_line(message.urls)
        finally:
            self.lost.set()
