"""The router's command line as its users run it: a process of its own."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
from patience import in_time

__all__ = ["Ended", "kvsteer_router", "serving_process"]


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


@asynccontextmanager
async def serving_process(*argv: str) -> AsyncIterator[tuple[str, int]]:
    """A router in a process of its own: its URL and its process id."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "router", *argv, "--port", "0", stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        line = (await in_time(process.stdout.readline())).decode()
        assert line.startswith("kvsteer-router ready http://"), line
        yield line.split()[-1], process.pid
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
