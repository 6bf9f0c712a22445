"""Fixtures of the fault list's tests: engines that do as they are told, and routers in front of them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
from router_stage import Stage


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    """Starts engines and routers for a test, and ends them all."""
    async with AsyncExitStack() as stack:
        yield Stage(stack)
