"""The process: started by its command, announced, ended by signals, and honest about why it could not run."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

import aiohttp
import pytest
from engine_client import Client, is_busy
from engine_process import EVENTS, FREE_SIM, ROOT, SMALL, EngineProcess
from patience import PATIENCE, until

COMPLETIONS = "/v1/completions"
SIM = ("--model-path", "sim", *FREE_SIM)


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        yield holder.getsockname()[1]


def run_engine(*flags: str) -> subprocess.CompletedProcess[str]:
    """A start that is expected to fail."""
    command = [sys.executable, "-m", "engine", *flags]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)


def assert_one_line(done: subprocess.CompletedProcess[str], status: int, *, says: str) -> None:
    assert done.returncode == status, done.stderr
    assert done.stdout == ""
    assert done.stderr.startswith("kvsteer-engine: error: ")
    assert done.stderr.count("\n") == 1
    assert says in done.stderr


def test_bad_flags_end_with_one_line_and_status_2() -> None:
    assert_one_line(run_engine("--page-size", "0"), 2, says="page_size must be at least 1, got 0")


def test_a_model_that_does_not_fit_the_ranks_ends_with_one_line_and_status_2() -> None:
    done = run_engine("--model-path", "tiny", "--tp-size", "3", "--port", "0")
    assert_one_line(done, 2, says="4 attention heads do not divide over 3 groups of ranks (tp_size 3 / dcp_size 1)")


@pytest.mark.parametrize("path", ["nothing", "/nothing/at/all", "nothing.gguf"])
def test_a_model_path_that_leads_nowhere_ends_with_one_line_and_status_1(path: str) -> None:
    assert_one_line(run_engine("--model-path", path, "--port", "0"), 1, says=path)


def test_a_taken_http_port_ends_with_one_line_and_status_1(taken_port: int) -> None:
    done = run_engine(*SIM, "--port", str(taken_port))
    assert_one_line(done, 1, says=f"cannot listen on 127.0.0.1:{taken_port}: Address already in use")


def test_no_replica_is_announced_unless_all_can_listen(taken_port: int) -> None:
    done = run_engine(*SIM, "--port", str(taken_port - 1), "--replicas", "2")
    assert_one_line(done, 1, says="cannot listen on 127.0.0.1:")


def test_a_taken_event_port_ends_with_one_line_and_status_1(taken_port: int) -> None:
    config = json.dumps({"publisher": "zmq", "endpoint": f"tcp://127.0.0.1:{taken_port}", "bind": True})
    assert_one_line(run_engine(*SIM, "--port", "0", "--kv-events-config", config), 1, says=f"{taken_port}")


def test_an_unknown_publisher_ends_with_one_line_and_status_1() -> None:
    done = run_engine(*SIM, "--port", "0", "--kv-events-config", '{"publisher":"kafka"}')
    assert_one_line(done, 1, says="'kafka'")


def test_tiny_without_torch_says_what_to_install() -> None:
    program = "import sys; sys.modules['torch'] = None; from engine.__main__ import main; sys.exit(main())"
    command = [sys.executable, "-c", program, "--port", "0"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert_one_line(done, 1, says="pip install 'kvsteer[engine]'")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_process_in_order(number: signal.Signals) -> None:
    with EngineProcess(*SIM, "--kv-events-config", EVENTS) as process:
        process.wait_ready()
        assert process.end(number) == 0
        assert process.stderr == ""


def test_a_process_started_without_stdin_ends_in_order() -> None:
    without_stdin = "import os, sys; os.close(0); from engine.__main__ import main; sys.exit(main())"
    with EngineProcess(*SIM, program=("-c", without_stdin)) as engine:
        engine.wait_ready()
        assert engine.end() == 0, engine.stderr


async def test_a_request_that_can_end_within_the_grace_is_finished(http: aiohttp.ClientSession) -> None:
    flags = ("--sim-step-us", "20000", "--shutdown-grace-seconds", "30")
    with EngineProcess("--model-path", "sim", *flags) as process:
        url = process.wait_ready().url
        body = {"prompt": "x", "max_tokens": 20, "stream": True}
        async with http.post(url + COMPLETIONS, json=body) as response:
            first = await response.content.readuntil(b"\n\n")
            process.process.send_signal(signal.SIGTERM)
            rest = await response.read()
        *events, done, _ = (first + rest).split(b"\n\n")
        assert done == b"data: [DONE]"
        assert sum(len(json.loads(event[6:])["choices"][0]["text"]) for event in events) == 20
        assert await asyncio.to_thread(process.process.wait, PATIENCE) == 0


async def test_a_request_that_cannot_is_told_and_the_process_still_ends_well(http: aiohttp.ClientSession) -> None:
    flags = ("--sim-step-us", "20000", "--shutdown-grace-seconds", "0.1")
    with EngineProcess("--model-path", "sim", *flags) as process:
        url = process.wait_ready().url
        body = {"prompt": "x", "max_tokens": 10_000}
        async with http.post(url + COMPLETIONS, json=body | {"stream": True}) as response:
            whole = asyncio.create_task(Client(http, url).post(COMPLETIONS, body))
            await response.content.readuntil(b"\n\n")
            await until(lambda: is_busy(Client(http, url), 2), "both requests run")
            process.process.send_signal(signal.SIGTERM)
            rest = await response.read()
        status, answer = await whole
        assert (status, answer["error"]["type"]) == (503, "server_error")
        *_, error, done, _ = rest.split(b"\n\n")
        assert json.loads(error.removeprefix(b"data: "))["error"]["type"] == "server_error"
        assert done == b"data: [DONE]"
        assert await asyncio.to_thread(process.process.wait, PATIENCE) == 0


async def test_replicas_are_engines_of_their_own_on_consecutive_ports(http: aiohttp.ClientSession) -> None:
    with EngineProcess(*SIM, *SMALL, "--replicas", "3", "--kv-events-config", EVENTS) as process:
        clients = [Client(http, url) for url in process.wait_ready(3).urls]
        body = {"prompt": list(range(30)), "max_tokens": 4}
        answers = [(await client.post(COMPLETIONS, body))[1] for client in clients]
        again = (await clients[1].post(COMPLETIONS, body))[1]
        infos = [(await client.get("/server_info"))[1] for client in clients]
    assert len({answer["choices"][0]["text"] for answer in answers}) == 1
    cached = [answer["usage"]["prompt_tokens_details"]["cached_tokens"] for answer in (*answers, again)]
    assert cached == [0, 0, 0, 24]
    assert len({info["kv_events"]["endpoint_port_base"] for info in infos}) == 3


def test_a_lane_that_dies_ends_the_process_with_status_1() -> None:
    """The failure is put in, everything else is the real process."""
    program = """
import sys
from engine.__main__ import main
from engine.runner.sim_runner import SimRunner
def fail(self, chunks): raise RuntimeError("the device is gone")
SimRunner.run = fail
sys.exit(main())
"""
    with EngineProcess(*SIM, program=("-c", program)) as process:
        url = process.wait_ready().url
        asyncio.run(_provoke(url))
        assert process.process.wait(PATIENCE) == 1
        *_, last = process.stderr.splitlines()
    assert last.startswith(f"kvsteer-engine: error: the engine behind {url} has stopped: ")
    assert "the device is gone" in last


async def _provoke(url: str) -> None:
    async with aiohttp.ClientSession() as session:
        status, _ = await Client(session, url).post(COMPLETIONS, {"prompt": "x"})
        assert status == 503


@pytest.mark.parametrize(("page_size", "dcp_size", "ranks"), [(3, 2, "threads"), (1, 4, "auto"), (3, 2, "processes")])
async def test_tiny_serves_and_caches_whole_blocks(
    http: aiohttp.ClientSession, page_size: int, dcp_size: int, ranks: str
) -> None:
    sizes = ("--page-size", str(page_size), "--tp-size", str(dcp_size), "--dcp-size", str(dcp_size))
    sizes += ("--rank-backend", ranks)
    flags = ("--model-path", "tiny", "--device", "cpu", "--max-total-tokens", "2048", "--kv-events-config", EVENTS)
    with EngineProcess(*flags, *sizes) as process:
        client = Client(http, process.wait_ready().url)
        body = {"prompt": list(range(100)), "max_tokens": 6, "temperature": 0}
        first = (await client.post(COMPLETIONS, body))[1]
        second = (await client.post(COMPLETIONS, body))[1]
        _, info = await client.get("/server_info")
        assert await asyncio.to_thread(process.end) == 0
    width = info["kv_events"]["block_size"]
    assert width == page_size * dcp_size
    assert first["choices"] == second["choices"]
    assert first["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] == 99 // width * width
