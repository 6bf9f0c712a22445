"""Recording: everything a stream was told, every attempt at a request, no ids unless asked, nothing lost by a kill."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import aiohttp
import msgspec
import pytest
from aiohttp import web
from command import kvsteer_router, serving_process
from event_source import EventSource, stored
from fake_engine import FakeEngine, answer_at_once
from fake_engine import stored as stored_prompt
from patience import until
from router_stage import Stage

from contract.events import AllBlocksCleared, BlockRemoved
from router.config import RouterConfig
from router.fleet.lane import Lane
from router.service import watching
from router.trace.flags import run_trace
from router.trace.played_trace import PlayedTrace
from router.trace.reader import TraceReader
from router.trace.recorder import recording
from router.trace.records import Began, Record, Routed, Served
from router.trace.replayer import Replayer

CHANCE = Random(11)
SHARED = CHANCE.choices(range(250), k=40)
PROMPTS = [SHARED + CHANCE.choices(range(250), k=20) for _ in range(6)]


async def caching(engine: FakeEngine, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    """Announces every prompt it is sent, and has what it announced."""
    prompt, width = body["prompt"], engine.width
    blocks = stored_prompt(prompt[:-1], width=width).block_hashes
    known: set[Any] = engine.__dict__.setdefault("known", set())
    engine.cached_tokens = width * sum(block in known for block in blocks)
    known.update(blocks)
    engine.publish(stored_prompt(prompt[:-1], width=width))
    return await answer_at_once(engine, request, body)


def records(path: Path, kind: type[Any]) -> list[Any]:
    return [record for record in TraceReader(path) if isinstance(record, kind)]


async def ask(url: str, prompt: Sequence[int]) -> None:
    """Send a prompt to a router that is ready, and wait until it has heard what became of it."""
    async with aiohttp.ClientSession() as session:

        async def ready() -> bool:
            async with session.get(f"{url}/ready") as response:
                return response.status == 200

        await until(ready, "the router is ready")
        async with session.post(f"{url}/v1/completions", json={"prompt": list(prompt)}) as response:
            assert response.status == 200, await response.text()

        async def heard() -> bool:
            async with session.post(f"{url}/explain", json={"prompt": list(prompt)}) as response:
                lanes = (await response.json())["lanes"]
                return any(lane["matched_tokens"] == (len(prompt) - 1) // 6 * 6 for lane in lanes)

        await until(heard, "the prompt's blocks are in the index")


async def test_a_killed_router_leaves_all_that_it_saw_and_the_next_one_goes_on(stage: Stage, tmp_path: Path) -> None:
    path, engine = tmp_path / "fleet.kvtrace", FakeEngine()
    engine.publish_on()
    engine.answer = caching
    await stage.engine(engine)
    flags = ("--replica", engine.url, "--trace-out", str(path))
    async with serving_process(*flags) as (url, pid):
        for prompt in PROMPTS:
            await ask(url, prompt)
        os.kill(pid, signal.SIGKILL)
    trace = PlayedTrace(path).run()
    (lane,) = trace.lanes
    held = {tuple(prompt): trace.matched_tokens(prompt)[lane.name] for prompt in PROMPTS}
    assert held == {tuple(prompt): 54 for prompt in PROMPTS}
    assert [request.routed.predicted for request in trace.requests] == [0, *[36] * 5]
    assert [request.reported for request in trace.requests] == [0, *[36] * 5]
    assert not trace.faults
    assert all(routed.token_ids is None for routed in records(path, Routed))

    async with serving_process(*flags, "--trace-tokens") as (url, pid):
        await ask(url, PROMPTS[0])
        os.kill(pid, signal.SIGTERM)
    assert len(records(path, Began)) == 2
    assert [list(routed.token_ids) for routed in records(path, Routed)[6:]] == [PROMPTS[0][:-1]]
    assert len(records(path, Served)) == 7


async def disturbed(source: EventSource) -> None:
    """A stream with everything in it: holes, repeats, a payload that is no batch, another engine behind it."""
    await source.publish(stored(1), stored(2))
    await source.publish(stored(3), lost=True)
    await source.publish(stored(4))
    await source.send_again(0)
    await source.publish_payload(b"no batch")
    await source.publish(BlockRemoved(block_hashes=[2]), stored(5))
    await source.stop()
    source.start_again()
    await source.publish(AllBlocksCleared())
    await source.publish(stored(6))
    await source.publish(stored(7), lost=True)
    source.forget()
    await source.publish(stored(8))


async def test_a_replayed_stream_goes_through_the_same_states(stage: Stage, tmp_path: Path) -> None:
    """Whatever disturbed a stream, live: its recording leads to the same status and the same blocks."""
    engine = FakeEngine()
    source = await stage.wire(engine)
    config, path = RouterConfig(replicas=(engine.url,), probe_interval=0.1), tmp_path / "a.kvtrace"
    with recording(path, source="a test", failed=print) as recorder:
        async with watching(config, recorder=recorder) as fleet:
            await until(lambda: any(lane.status is not None for lane in fleet.lanes), "the stream is joined")
            lane: Lane = next(iter(fleet.lanes))
            await source.publish()
            await until(lambda: lane.status is not None and lane.status.state == "live", "the stream is live")
            await disturbed(source)
            await until(lambda: lane.status is not None and lane.status.last_seq == 3, "the last batch came")
            await until(lambda: lane.status is not None and lane.status.state != "replaying", "no replay runs")
            status = lane.status
            assert status is not None
            assert status.restarts
            replayer = Replayer()
            for record in TraceReader(path):
                replayer.feed(record)
            (replayed,) = replayer.lanes.values()
            fields = msgspec.structs.asdict(replayed.status)
            assert fields == {name: getattr(status, name) for name in fields}
            # What is ordered of the index at once is done a little later, where it is much.
            blocks = set(replayer.index.blocks(replayed.handle))
            await until(lambda: set(lane._index.blocks(lane.handle)) == blocks, "both indexes hold the same")


async def test_trace_record_watches_and_ends_in_order(stage: Stage, tmp_path: Path) -> None:
    path, engine = tmp_path / "a.kvtrace", FakeEngine(width=64)
    engine.publish_on(advertised_width=16)
    await stage.engine(engine)
    engine.publish(stored_prompt(SHARED * 4, width=64))
    ended = await kvsteer_router("trace", "record", "--replica", engine.url, str(path), "--batches", "1")
    assert (ended.status, ended.err) == (0, "")
    assert f"{engine.url}#0 follows tcp://127.0.0.1:" in ended.out
    assert ended.out.endswith(f"1 batches recorded in {path}\n")
    trace = PlayedTrace(path).run()
    (lane,) = trace.lanes
    assert (lane.advertised_block_size, lane.width) == (16, 64)
    assert trace.matched_tokens(SHARED * 4)[lane.name] == 128


def test_a_recorder_goes_on_where_nobody_reads_what_it_says(tmp_path: Path) -> None:
    path = tmp_path / "a.kvtrace"
    command = [sys.executable, "-m", "router", "trace", "record", "--replica", "http://127.0.0.1:1", str(path)]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*command, "--seconds", "0.1"], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    said, ended = done.stderr.splitlines()
    assert said == "kvsteer-router trace record: cannot print: No space left on device"
    assert (done.returncode, ended) == (
        1,
        f"kvsteer-router trace record: no stream was there to be recorded: {path} says only what the replicas are",
    )
    assert len(records(path, Began)) == 1


def test_trace_record_that_cannot_write_says_so_in_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("not a trace")
    assert run_trace(["record", "--replica", "http://127.0.0.1:1", str(path)]) == 1
    said = capsys.readouterr()
    assert said.err == f"kvsteer-router trace record: {path} is no .kvtrace file: it begins with b'not a tr'\n"
    assert said.out == ""


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--replica", "http://127.0.0.1:1"], "OUT.kvtrace is missing: where to record to"),
        (["a.kvtrace"], "at least one --replica URL is needed"),
        (["--replica", "http://h:1", "ftp://h:1", "a.kvtrace"], "replica 'ftp://h:1' is not http://HOST:PORT"),
        (["--replica", "http://h:1", "a.kvtrace", "--seconds", "0"], "--seconds must be above 0"),
        (["--replica", "http://h:1", "a.kvtrace", "--batches", "0"], "--batches must be at least 1, got 0"),
    ],
)
def test_flags_that_make_no_recording_are_named(
    argv: list[str], said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match="2"):
        run_trace(["record", *argv])
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert not list(tmp_path.iterdir())


async def test_a_disk_that_fills_up_ends_the_recording_and_not_the_router(stage: Stage, tmp_path: Path) -> None:
    """A limit on file sizes stands in for the disk: the router serves on, and the trace keeps what it had."""
    path, engine = tmp_path / "full.kvtrace", FakeEngine()
    engine.publish_on()
    engine.answer = caching
    await stage.engine(engine)
    program = "import resource, signal, sys, router.__main__ as main; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
    program += "resource.setrlimit(resource.RLIMIT_FSIZE, (1_500, 1_500)); sys.exit(main.main(sys.argv[1:]))"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", program, "--replica", engine.url, "--trace-out", str(path), "--port", "0"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        url = (await process.stdout.readline()).decode().split()[-1]
        for prompt in PROMPTS:
            await ask(url, prompt)
        process.terminate()
        _, err = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0
    assert f"recording ends: cannot write {path} past byte {path.stat().st_size}: File too large" in err.decode()
    reader = TraceReader(path)
    kept: list[Record] = list(reader)
    assert not reader.torn
    assert sum(isinstance(record, Routed) for record in kept) in range(1, 6)
