"""The fleet of an end-to-end test, and its end."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from e2e_fleet import Fleet

from bench.children import ChildGroup


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[Fleet]:
    """Engines and routers as real processes, all stopped when the test ends."""
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    timeout = aiohttp.ClientTimeout(total=60)
    async with ChildGroup(tmp_path, env=env) as group, aiohttp.ClientSession(timeout=timeout) as session:
        yield Fleet(group, session)
