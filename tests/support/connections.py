"""TCP connections to a base URL, for tests that write HTTP themselves or ask whether anybody listens."""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

__all__ = ["connect", "takes_connections"]


async def connect(url: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection of its own."""
    address = urlsplit(url)
    return await asyncio.open_connection(address.hostname, address.port)


async def takes_connections(url: str) -> bool:
    """Whether somebody listens there. A listener that is just closing may reset what was already in its queue."""
    try:
        _, writer = await connect(url)
    except OSError:
        return False
    writer.close()
    return True
