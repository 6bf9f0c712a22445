"""Fixtures of the engine's tests: a shared simulated engine, and a client."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import aiohttp
import pytest
from engine_client import Client
from engine_process import EVENTS, FREE_SIM, SMALL, EngineProcess


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


@pytest.fixture(scope="module")
def sim() -> Iterator[EngineProcess]:
    """A simulated engine that takes no time, with two data-parallel ranks and KV events off."""
    with EngineProcess("--model-path", "sim", "--dp-size", "2", *SMALL, *FREE_SIM) as process:
        yield process.wait_ready()


@pytest.fixture(scope="module")
def publishing_sim() -> Iterator[EngineProcess]:
    """A simulated engine that takes no time and publishes events."""
    with EngineProcess("--model-path", "sim", "--kv-events-config", EVENTS, *SMALL, *FREE_SIM) as process:
        yield process.wait_ready()


@pytest.fixture
def client(http: aiohttp.ClientSession, sim: EngineProcess) -> Client:
    return Client(http, sim.url)


@pytest.fixture
def publishing(http: aiohttp.ClientSession, publishing_sim: EngineProcess) -> Client:
    return Client(http, publishing_sim.url)
