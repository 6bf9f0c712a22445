"""``kvsteer-router top``: one frame for pipes, a live view for a terminal."""

from __future__ import annotations

import asyncio
import os
import pty
import sys
import termios
from random import Random

from command import kvsteer_router
from fake_engine import FakeEngine, free_port, stored
from patience import in_time, until
from router_stage import Stage

PROMPT = Random(4).choices(range(250), k=300)


async def test_one_frame_shows_replicas_lanes_and_faults(stage: Stage) -> None:
    engine = FakeEngine(width=64, ranks=2)
    engine.publish_on(advertised_width=16)
    engine.publish(stored(PROMPT, width=64))
    await stage.engine(engine)
    router = await stage.router(engine)

    async def noticed() -> bool:
        return bool((await router.replica(engine))["faults"])

    await until(noticed, "the width is noticed")
    ended = await kvsteer_router("top", "--once", router.url)
    assert (ended.status, ended.err) == (0, "")
    for expected in (engine.url, "rank 0", "rank 1", "live", "width-mismatch", "To do:"):
        assert expected in ended.out
    assert "\x1b" not in ended.out
    piped = await kvsteer_router("top", router.url)
    assert (piped.status, engine.url in piped.out) == (0, True)


async def test_a_router_that_asks_for_keys_is_read_with_one(stage: Stage) -> None:
    engine = await stage.engine()
    router = await stage.router(engine, api_keys=("secret",))
    for command in (("top", "--once"), ("check", "--json")):
        with_key = await kvsteer_router(*command, "--api-key", "secret", router.url)
        assert engine.url in with_key.out
    refused = await kvsteer_router("top", "--once", router.url)
    assert (refused.status, refused.out) == (1, "")
    assert "401" in refused.err


async def test_without_a_router_one_frame_is_one_line() -> None:
    ended = await kvsteer_router("top", "--once", f"http://127.0.0.1:{free_port()}")
    assert (ended.status, ended.out) == (1, "")
    assert len(ended.err.splitlines()) == 1


async def test_q_ends_the_live_view(stage: Stage) -> None:
    router = await stage.router(await stage.engine())
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (50, 200))
    argv = (sys.executable, "-m", "router", "top", router.url)
    environment = {**os.environ, "TERM": "xterm"}
    process = await asyncio.create_subprocess_exec(*argv, stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
    try:
        shown = b""
        while b"replica" not in shown:
            shown += await asyncio.to_thread(os.read, ours, 65536)
        os.write(ours, b"q")
        assert await in_time(process.wait()) == 0
    finally:
        if process.returncode is None:
            process.kill()
        os.close(theirs)
        os.close(ours)
