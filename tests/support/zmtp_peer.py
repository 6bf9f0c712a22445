"""The binding side of ZMTP as bytes, and a listener that speaks it from a test's hand."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from router.intake.zmtp import GREETING_BYTES

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def greeting(*, major: int = 3, mechanism: bytes = b"NULL") -> bytes:
    return b"\xff" + bytes(7) + b"\x01\x7f" + bytes([major, 1]) + mechanism.ljust(20, b"\0") + bytes(32)


def written(body: bytes, *, more: bool = False, command: bool = False) -> bytes:
    """A frame."""
    flags = more | 4 * command
    long = len(body) > 255
    return bytes([flags | 2 * long]) + len(body).to_bytes(8 if long else 1, "big") + body


def ready(kind: str) -> bytes:
    socket_type = b"\x0bSocket-Type" + len(kind).to_bytes(4, "big") + kind.encode()
    return written(b"\x05READY" + socket_type + b"\x08Identity\x00\x00\x00\x00", command=True)


async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, kind: str = "PUB") -> None:
    """Shake hands with who connected, up to and with its subscription or request."""
    writer.write(greeting() + ready(kind))
    await reader.readexactly(GREETING_BYTES)
    for _ in range(2):  # READY, and what it wants
        _, size = await reader.readexactly(2)
        await reader.readexactly(size)


@asynccontextmanager
async def listening(serve: Serve, *, port: int = 0) -> AsyncIterator[str]:
    """The endpoint of a listener that serves each connection so, and ends them all."""
    tasks: set[asyncio.Task[None]] = set()

    async def run(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await serve(reader, writer)
        finally:
            writer.transport.abort()

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.create_task(run(reader, writer)))

    bound = socket.create_server(("127.0.0.1", port))
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)  # so that what is not read is soon noticed
    server = await asyncio.start_server(connected, sock=bound)
    try:
        yield f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
