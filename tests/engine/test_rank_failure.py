"""An engine whose ranks are processes: what a lost rank does to it, and that no rank outlives it."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import Iterator

import aiohttp
import pytest
import torch
from engine_client import Client
from engine_process import EngineProcess
from patience import PATIENCE, until
from process_table import assert_gone, children

COMPLETIONS = "/v1/completions"
FLAGS = ("--model-path", "tiny", "--device", "cpu", "--page-size", "3", "--max-total-tokens", "12000")
PROCESSES = (*FLAGS, "--rank-backend", "processes", "--tp-size", "2", "--dcp-size", "2")
LONG = {"prompt": "once", "max_tokens": 9000, "temperature": 0, "ignore_eos": True}


@pytest.fixture
def engine() -> Iterator[EngineProcess]:
    with EngineProcess(*PROCESSES) as process:
        yield process.wait_ready()


def ranks(engine: EngineProcess) -> list[int]:
    return children(engine.process.pid)


async def ended(engine: EngineProcess) -> int:
    return await asyncio.to_thread(engine.process.wait, PATIENCE)


@pytest.mark.parametrize("rank", [0, 1])
async def test_a_rank_killed_under_load_ends_the_engine_which_says_which(
    engine: EngineProcess, http: aiohttp.ClientSession, rank: int
) -> None:
    pids = ranks(engine)
    client = Client(http, engine.url)
    whole = asyncio.create_task(client.post(COMPLETIONS, LONG))
    async with http.post(engine.url + COMPLETIONS, json=LONG | {"stream": True}) as response:
        await response.content.readuntil(b"\n\n")
        os.kill(pids[rank], signal.SIGKILL)
        rest = await response.read()
    status, answer = await whole
    assert await ended(engine) == 1
    blame = f"rank {rank} (pid {pids[rank]}) was killed by SIGKILL"
    assert (status, answer["error"]["code"]) == (503, "engine_dead")
    assert blame in answer["error"]["message"]
    assert blame.encode() in rest
    *_, last = engine.stderr.splitlines()
    assert last == f"kvsteer-engine: error: the engine behind {engine.url} has stopped: {blame}"
    assert_gone(pids)


async def test_a_rank_killed_while_nothing_is_asked_ends_the_engine_too(engine: EngineProcess) -> None:
    pids = ranks(engine)
    os.kill(pids[1], signal.SIGKILL)
    assert await ended(engine) == 1
    assert f"rank 1 (pid {pids[1]}) was killed by SIGKILL" in engine.stderr.splitlines()[-1]
    assert_gone(pids)


async def test_a_rank_that_stops_is_named_after_the_timeout(http: aiohttp.ClientSession) -> None:
    with EngineProcess(*PROCESSES, "--rank-timeout", "6") as engine:
        pids = ranks(engine.wait_ready())
        os.kill(pids[1], signal.SIGSTOP)
        status, answer = await Client(http, engine.url).post(COMPLETIONS, LONG)
        assert await ended(engine) == 1
        assert status == 503
        assert f"rank 1 (pid {pids[1]}) did not answer" in answer["error"]["message"]
        assert_gone(pids)


async def test_an_engine_that_is_killed_takes_its_ranks_along_even_a_stopped_one(engine: EngineProcess) -> None:
    pids = ranks(engine)
    assert len(pids) == 2
    os.kill(pids[1], signal.SIGSTOP)
    engine.process.kill()
    assert_gone(pids)


async def test_an_engine_killed_while_its_ranks_start_takes_them_along() -> None:
    with EngineProcess(*PROCESSES) as engine:
        await until(lambda: len(ranks(engine)) == 2, "both ranks have been started")
        pids = ranks(engine)
        engine.process.kill()
        assert_gone(pids)


async def test_sigterm_closes_the_ranks_in_order(engine: EngineProcess, http: aiohttp.ClientSession) -> None:
    pids = ranks(engine)
    status, _ = await Client(http, engine.url).post(COMPLETIONS, {"prompt": "x", "max_tokens": 3})
    assert status == 200
    engine.process.send_signal(signal.SIGTERM)
    assert await ended(engine) == 0
    assert engine.stderr == ""
    assert_gone(pids, already=True)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has what the ranks ask for")
async def test_ranks_without_the_device_they_need_end_the_start_with_one_line() -> None:
    with EngineProcess(*PROCESSES, "--device", "cuda") as engine:
        assert await ended(engine) == 1
        line = r"kvsteer-engine: error: rank \d+ \(pid \d+\) failed: DeviceError: .*(is not there|need a GPU each).*\n"
        assert re.fullmatch(line, engine.stderr)
