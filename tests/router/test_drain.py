"""A router that is told to end gives running requests their time, and no more, by the loop's clock."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from contextlib import AsyncExitStack
from urllib.parse import urlsplit

import aiohttp
import pytest
from patience import PATIENCE, in_time, until
from router_stage import Stage
from skipping_loop import SkippingLoop

from router.config import RouterConfig
from router.service import serving

DRAIN = 30.0


async def seconds_to_drain() -> float:
    """What a router with a request that never ends takes from being told to end until it has."""
    clock = asyncio.get_running_loop().time
    async with AsyncExitStack() as outer, aiohttp.ClientSession() as session:
        engine = await Stage(outer).engine()
        engine.hold.clear()
        async with AsyncExitStack() as inner:
            router = await Stage(inner).router(engine, drain_timeout=DRAIN, probe_interval=10 * DRAIN)
            asking = asyncio.create_task(session.post(f"{router.url}/v1/completions", json={"prompt": "a"}))
            await until(lambda: engine.asked, "the engine has the request")
            told = clock()
        ended = clock()
        await in_time(engine.asked[0].left.wait())
        with pytest.raises(aiohttp.ClientError):
            await asking
        return ended - told


def test_a_drain_lasts_as_long_as_it_was_told() -> None:
    with asyncio.Runner(loop_factory=SkippingLoop) as runner:
        assert DRAIN <= runner.run(seconds_to_drain()) < 1.5 * DRAIN


@pytest.mark.parametrize("turns", range(6))
async def test_a_connection_that_comes_at_the_last_moment_is_closed_too(stage: Stage, turns: int) -> None:
    """However far the loop has come with taking it: afterwards nobody knows of it any more."""
    config = RouterConfig(replicas=((await stage.engine()).url,), port=0)
    with socket.socket() as client:
        async with serving(config, tokenizer=None) as url:
            client.connect(("127.0.0.1", urlsplit(url).port))
            for _ in range(turns):
                await asyncio.sleep(0)
        client.settimeout(PATIENCE)
        with contextlib.suppress(ConnectionError):
            assert client.recv(1) == b""
