"""Clients that leave, queues that fill, engines that die: what is freed, and what is said to whom."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Sequence

import aiohttp
import pytest
from connections import connect
from engine_client import Client, busy, is_busy, is_idle
from engine_process import SMALL, EngineProcess
from patience import in_time, until

from engine.config import EngineConfig
from engine.loop import EngineLoop
from engine.model.catalogue import find_model
from engine.runner.base import Chunk
from engine.runner.sim_runner import SimRunner, SimTiming
from engine.scheduler import Limits, Scheduler
from engine.server.http_server import HttpServer
from engine.server.lanes import Lane
from engine.server.mailroom import Mailroom
from engine.server.replica import Replica

COMPLETIONS = "/v1/completions"
ROOM = ("--context-length", "30000", "--max-total-tokens", "200000")
SLOW_SIM = ("--model-path", "sim", "--sim-step-us", "50000", "--chunked-prefill-size", "10", *ROOM, *SMALL)
SLOW_PROMPT = [7] * 20_000  # 2000 steps of 50 ms: a prefill of 100 s, more than any test waits


@pytest.fixture(scope="module")
def slow_sim() -> Iterator[EngineProcess]:
    flags = ("--max-running-requests", "1", "--max-queued-requests", "1")
    with EngineProcess(*SLOW_SIM, *flags) as process:
        yield process.wait_ready()


@pytest.fixture
def slow(http: aiohttp.ClientSession, slow_sim: EngineProcess) -> Client:
    return Client(http, slow_sim.url)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_a_client_that_leaves_in_the_prefill_frees_its_request(slow: Client, stream: bool) -> None:
    body = {"prompt": SLOW_PROMPT, "max_tokens": 2, "stream": stream}
    request = asyncio.create_task(slow.post(COMPLETIONS, body))
    await until(lambda: is_busy(slow), "the engine has work")
    request.cancel()
    await until(lambda: is_idle(slow), "its request is dropped")


async def test_a_client_that_leaves_in_the_middle_of_a_stream_frees_its_request(slow: Client) -> None:
    body = {"prompt": "short", "max_tokens": 2000, "stream": True}
    async with slow.session.post(slow.url + COMPLETIONS, json=body) as response:
        await response.content.readuntil(b"\n\n")
        assert await busy(slow) == 1
    await until(lambda: is_idle(slow), "its request is dropped")


async def test_clients_that_leave_are_no_errors(slow: Client, slow_sim: EngineProcess) -> None:
    for max_tokens in (5, 1000):
        body = {"prompt": "short", "max_tokens": max_tokens, "stream": True}
        async with slow.session.post(slow.url + COMPLETIONS, json=body) as response:
            await response.content.readuntil(b"\n\n")
    await until(lambda: is_idle(slow), "the engine is idle")
    assert slow_sim.stderr == ""


async def test_a_client_that_leaves_frees_all_prompts_of_its_batch(http: aiohttp.ClientSession) -> None:
    with EngineProcess(*SLOW_SIM) as process:
        client = Client(http, process.wait_ready().url)
        request = asyncio.create_task(client.post(COMPLETIONS, {"prompt": [SLOW_PROMPT] * 5, "max_tokens": 2}))
        await until(lambda: is_busy(client), "the engine has work")
        request.cancel()
        await until(lambda: is_idle(client), "its request is dropped")


async def test_a_full_engine_refuses_with_503_and_says_when_to_come_back(slow: Client) -> None:
    body = {"prompt": SLOW_PROMPT, "max_tokens": 2}
    requests = [asyncio.create_task(slow.post(COMPLETIONS, body)) for _ in range(2)]
    await until(lambda: is_busy(slow, 2), "the engine has work")
    async with slow.session.post(slow.url + COMPLETIONS, json=body) as response:
        answer = await response.json()
        assert response.status == 503
        assert response.headers["Retry-After"] == "1"
    assert answer["error"]["code"] == "overloaded"
    for request in requests:
        request.cancel()
    await until(lambda: is_idle(slow), "the engine is idle")
    assert (await slow.post(COMPLETIONS, {"prompt": "short", "max_tokens": 1}))[0] == 200


async def test_a_busy_cache_is_not_flushed(slow: Client) -> None:
    request = asyncio.create_task(slow.post(COMPLETIONS, {"prompt": SLOW_PROMPT, "max_tokens": 2}))
    await until(lambda: is_busy(slow), "the engine has work")
    status, answer = await slow.get("/flush_cache")
    request.cancel()
    assert status == 400
    assert "running or waiting" in answer["error"]["message"]
    await until(lambda: is_idle(slow), "the engine is idle")


class FailingRunner(SimRunner):
    """Fails at a given step: a GPU that dies."""

    def __init__(self, *, steps: int, config: EngineConfig) -> None:
        super().__init__(timing=config.sim, geometry=config.geometry)
        self._left = steps

    def run(self, chunks: Sequence[Chunk]) -> list[int | None]:
        if self._left == 0:
            raise RuntimeError("the device is gone")
        self._left -= 1
        return super().run(chunks)


@pytest.fixture
async def dying(http: aiohttp.ClientSession) -> AsyncIterator[Client]:
    """A replica in this process whose fourth step fails."""
    model = find_model("sim")
    config = EngineConfig(
        model_path=model.path, sim=SimTiming(step_us=1000, prefill_us_per_token=0, decode_us_per_sequence=0)
    ).fitted_to(model)
    limits = Limits(context_length=100, max_running=8, max_waiting=8, prefill_tokens=100)
    scheduler = Scheduler(geometry=config.geometry, total_blocks=100, limits=limits)
    loop = EngineLoop(scheduler=scheduler, runner=FailingRunner(steps=3, config=config), publish=lambda events: None)
    loop.start()
    mailroom = Mailroom(asyncio.get_running_loop())
    server = HttpServer(
        Replica(config, model, lanes=[Lane(loop, dp_rank=0, events=None)], mailroom=mailroom, events=None)
    )
    try:
        yield Client(http, await server.listen(host="127.0.0.1", port=0))
    finally:
        await server.close()
        loop.close()


async def test_an_engine_that_dies_gives_503_to_who_waits_and_to_who_comes(dying: Client) -> None:
    for _ in range(2):
        status, answer = await dying.post(COMPLETIONS, {"prompt": "x", "max_tokens": 50})
        assert status == 503
        assert answer["error"]["code"] == "engine_dead"
        assert "the device is gone" in answer["error"]["message"]
    for path in ("/health", "/ready", "/health_generate", "/kv_blocks", "/flush_cache"):
        assert (await dying.get(path))[0] == 503, path
    assert (await dying.get("/server_info"))[0] == 200


async def test_an_engine_that_dies_in_the_middle_of_a_stream_ends_it_with_an_error_event(dying: Client) -> None:
    body = {"prompt": "x", "max_tokens": 50, "stream": True}
    async with dying.session.post(dying.url + COMPLETIONS, json=body) as response:
        assert response.status == 200
        events = (await response.text()).split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    error = json.loads(events[-3].removeprefix("data: "))["error"]
    assert "the device is gone" in error["message"]
    assert sum(len(json.loads(event.removeprefix("data: "))["choices"][0]["text"]) for event in events[:-3]) == 3


async def test_a_body_that_never_ends_is_given_up(dying: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.server.body_reader._BODY_SECONDS", 0.05)
    reader, writer = await connect(dying.url)
    writer.write(f"POST {COMPLETIONS} HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{{".encode())
    head = await in_time(reader.readuntil(b"\r\n\r\n"))
    writer.close()
    assert head.startswith(b"HTTP/1.1 408 ")
