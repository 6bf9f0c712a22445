"""``kvsteer-router`` as a process: flags, the ready line, signals, and the replay command."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from connections import takes_connections
from fake_engine import FakeEngine
from patience import in_time, until
from router_stage import Stage

from router.__main__ import main

URL = "http://127.0.0.1:9"


async def run(*arguments: str) -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "router", *arguments, stdout=PIPE, stderr=PIPE)
    out, err = await in_time(process.communicate())
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


@asynccontextmanager
async def started(*arguments: str, program: Sequence[str] = ("-m", "router")) -> AsyncIterator[tuple[Process, str]]:
    """A router process, and the URL of its ready line."""
    process = await asyncio.create_subprocess_exec(sys.executable, *program, *arguments, stdout=PIPE)
    try:
        assert process.stdout is not None
        line = (await in_time(process.stdout.readline())).decode()
        assert line.startswith("kvsteer-router ready http://127.0.0.1:"), line
        yield process, line.split()[-1]
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ([], "--replica"),
        (["--replica"], "--replica"),
        (["--replica", "nonsense"], "nonsense"),
        (["--replica", "ftp://host"], "ftp://host"),
        (["--replica", "http://host:99999"], "99999"),
        (["--replica", "http://host/v1"], "http://host/v1"),
        (["--replica", URL, "--replica", URL + "/"], "twice"),
        (["--replica", URL, "--policy", "best"], "best"),
        (["--replica", URL, "--port", "-1"], "-1"),
        (["--replica", URL, "--port", "70000"], "70000"),
        (["--replica", URL, "--seed", "x"], "seed"),
        (["--replica", URL, "--probe-interval", "0"], "probe_interval"),
        (["--replica", URL, "--tokenizer", "/no/such/folder"], "/no/such/folder"),
        (["--replica", URL, "--tokenizer", ""], "tokenizer"),
        (["--replica", URL, "--nonsense"], "--nonsense"),
        (["--replica", URL, "--rep", URL], "--rep"),
        (["nonsense"], "nonsense"),
        (["replay"], "file"),
        (["replay", "x", "--block-size", "0"], "block-size"),
    ],
)
def test_bad_flags_end_with_one_line_that_names_them(
    arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        status = main(arguments)
    except SystemExit as exit_:
        status = exit_.code  # type: ignore[assignment]
    out, err = capsys.readouterr()
    assert (status, out) == (2, "")
    assert err.count("\n") == 1, err
    assert named in err


@pytest.mark.parametrize("arguments", [[], ["--replica", URL, "--tokenizer", "/no/such/folder"]])
async def test_a_process_with_bad_flags_ends_with_status_2_and_no_traceback(arguments: list[str]) -> None:
    status, out, err = await run(*arguments)
    assert (status, out, err.count("\n")) == (2, "", 1), err


@pytest.mark.parametrize("arguments", [["--help"], ["serve", "--help"], ["replay", "--help"]])
async def test_help_is_help(arguments: list[str]) -> None:
    status, out, err = await run(*arguments)
    assert (status, err) == (0, "")
    assert "usage: kvsteer-router" in out


async def test_a_port_that_is_taken_is_said_in_one_line() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = str(holder.getsockname()[1])
        status, out, err = await run("--replica", URL, "--port", port)
    assert (status, out) == (1, "")
    assert err.count("\n") == 1
    assert port in err


async def test_serve_is_what_it_does_without_a_command(stage: Stage) -> None:
    engine = await stage.engine()
    for command in ([], ["serve"]):
        flags = ["--replica", engine.url, "--port", "0", "--probe-interval", "0.1"]
        async with started(*command, *flags) as (_, url), aiohttp.ClientSession() as session:
            await until(lambda: _ready(session, url), "the router is ready")
            async with session.post(f"{url}/v1/completions", json={"prompt": "a"}) as response:
                assert response.status == 200


async def _ready(session: aiohttp.ClientSession, url: str) -> bool:
    async with session.get(f"{url}/ready") as response:
        return response.status == 200


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_running_request_ends_before_the_router_does(stage: Stage, number: signal.Signals) -> None:
    engine = await stage.engine()
    engine.hold.clear()
    async with started("--replica", engine.url, "--port", "0") as (process, url), aiohttp.ClientSession() as session:
        await until(lambda: _ready(session, url), "the router is ready")
        asking = asyncio.create_task(_complete(session, url))
        await until(lambda: engine.asked, "the engine has the request")
        process.send_signal(number)
        await until(lambda: _refuses(url), "no more connections are taken")
        engine.hold.set()
        assert await asking == 200
        assert await in_time(process.wait()) == 0


async def test_a_process_started_without_stdin_ends_in_order() -> None:
    without_stdin = "import os, sys; os.close(0); from router.__main__ import main; sys.exit(main())"
    async with started("--replica", URL, "--port", "0", program=("-c", without_stdin)) as (process, _):
        process.send_signal(signal.SIGTERM)
        assert await in_time(process.wait()) == 0


async def test_a_request_that_does_not_end_does_not_keep_the_router(stage: Stage) -> None:
    engine = await stage.engine()
    engine.hold.clear()
    flags = ["--replica", engine.url, "--port", "0", "--drain-timeout", "0.2"]
    async with started(*flags) as (process, url), aiohttp.ClientSession() as session:
        await until(lambda: _ready(session, url), "the router is ready")
        asking = asyncio.create_task(_complete(session, url))
        await until(lambda: engine.asked, "the engine has the request")
        process.terminate()
        await in_time(engine.asked[0].left.wait())
        assert await in_time(process.wait()) == 0
        with pytest.raises(aiohttp.ClientError):
            await asking


async def _complete(session: aiohttp.ClientSession, url: str) -> int:
    async with session.post(f"{url}/v1/completions", json={"prompt": "a"}) as response:
        await response.read()
        return response.status


async def _refuses(url: str) -> bool:
    return not await takes_connections(url)


async def test_a_router_whose_replicas_are_not_there_yet_runs_and_says_so(stage: Stage) -> None:
    engine: FakeEngine = await stage.engine()
    await engine.stop()
    flags = ["--replica", engine.url, "--port", "0", "--probe-interval", "0.1"]
    async with started(*flags) as (_, url), aiohttp.ClientSession() as session:
        assert not await _ready(session, url)
        await engine.start()
        await until(lambda: _ready(session, url), "the router is ready")


async def test_a_recording_is_replayed_from_the_command_line(golden_dir: Path) -> None:
    status, out, err = await run("replay", str(golden_dir / "sglang-page16.jsonl"))
    assert (status, err) == (0, "")
    record = json.loads(out)
    assert set(record) == {"seq", "lanes", "matched_tokens"}
    assert record["lanes"]["0"]["blocks"]
