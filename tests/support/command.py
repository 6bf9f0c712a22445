"""The router's command line as its users run it: a process of its own."""

from __future__ import annotations

import asyncio
import sys

import msgspec

__all__ = ["Ended", "kvsteer_router"]


class Ended(msgspec.Struct, frozen=True):
    """How a command ended."""

    status: int | None
    out: str
    err: str


async def kvsteer_router(*argv: str) -> Ended:
    """Run a command to its end."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "router", *argv, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, err = await process.communicate()
    return Ended(process.returncode, out.decode(), err.decode())
