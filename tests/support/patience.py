"""How long tests wait for what must happen: the one bound of all of them.

It says nothing of how fast anything is. It is what a machine that is starved of its cores may take, and ends the wait
for what never comes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

__all__ = ["PATIENCE", "in_time", "until"]

PATIENCE = 60.0
"""Seconds. Below the 120 after which pytest ends a test without a word of what it waited for."""

POLL_SECONDS = 0.005
T = TypeVar("T")


async def in_time(awaited: Awaitable[T]) -> T:
    """What is awaited, once it is there.

    Raises:
        TimeoutError: it did not come.
    """
    async with asyncio.timeout(PATIENCE):
        return await awaited


async def until(condition: Callable[[], Any], what: str) -> None:
    """Return once the condition holds (it may be a coroutine function); fail where it never does."""
    try:
        async with asyncio.timeout(PATIENCE):
            while True:
                held = condition()
                if await held if asyncio.iscoroutine(held) else held:
                    return
                await asyncio.sleep(POLL_SECONDS)
    except TimeoutError:
        raise AssertionError(f"not within {PATIENCE:g} s: {what}") from None
