"""The demo from its command line: real engine and router processes, a small trace, and how it ends when cut off."""

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from random import Random

import pytest
from patience import PATIENCE
from rich.console import Console

from bench.demo.run import run_policies
from bench.demo.trace import TraceScenario

BLOCK = 512
SEED = 11


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Growing conversations that share their first block, a few at a time."""
    random, fresh = Random(SEED), iter(range(1, 10_000))
    print(f"seed {SEED}")
    histories = [[0] for _ in range(6)]
    lines = []
    for step in range(36):
        history = random.choice(histories)
        history += [next(fresh) for _ in range(random.randint(1, 3))]
        length = BLOCK * len(history) - random.randint(0, BLOCK - 1)
        row = {"timestamp": 50 * step, "input_length": length, "output_length": 3, "hash_ids": history}
        lines.append(json.dumps(row))
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(lines))
    return path


@asynccontextmanager
async def demo(*flags: str) -> AsyncIterator[Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bench", "demo", *flags, stdout=PIPE, stderr=PIPE
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@contextmanager
def watched(pids: list[int]) -> Iterator[list[int]]:
    """File descriptors that become readable when those processes end."""
    files = [os.pidfd_open(pid) for pid in pids]
    try:
        yield files
    finally:
        for file in files:
            os.close(file)


async def ended(file: int) -> None:
    loop, over = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(file, over.set)
    try:
        async with asyncio.timeout(PATIENCE):
            await over.wait()
    finally:
        loop.remove_reader(file)


async def line_with(process: Process, text: bytes) -> bytes:
    assert process.stdout is not None
    async with asyncio.timeout(PATIENCE):
        async for line in process.stdout:
            if text in line:
                return line
    raise AssertionError(f"the demo ended without printing {text!r}")


async def test_a_trace_is_played_under_both_policies_and_the_contract_holds(trace: Path) -> None:
    flags = ("--trace", str(trace), "--replicas", "2", "--speedup", "2", "--cache-share", "0.6")
    async with demo(*flags) as process:
        stdout, stderr = map(bytes.decode, await process.communicate())
    assert process.returncode == 0, stderr
    assert stdout.count("total") == 2
    assert "36 of 36 requests" in stdout
    assert "contract held: advertised, emitted and hashed at 128 tokens a block" in stdout
    assert "kv / round_robin: reported hit rate" in stdout


@pytest.mark.skipif(sys.platform != "linux", reason="counts processes in /proc")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_demo_that_is_stopped_leaves_no_process_and_no_files(
    trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    async with demo("--trace", str(trace), "--replicas", "2", "--speedup", "0.5") as process:
        await line_with(process, b"round_robin: 9 of 36")
        with watched(children_of(process.pid)) as files:
            assert len(files) == 2
            process.send_signal(number)
            _, stderr = await process.communicate()
            await asyncio.gather(*map(ended, files))
    assert process.returncode == 130
    assert stderr.decode() == "bench demo: interrupted; every process has been stopped\n"
    assert list(temporary.iterdir()) == []


@pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")
async def test_a_fleet_that_dies_under_the_demo_is_named_and_ends_it(trace: Path, tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    flags = ("--trace", str(trace), "--replicas", "2", "--speedup", "0.5", "--logs", str(logs))
    async with demo(*flags) as process:
        await line_with(process, b"round_robin: 9 of 36")
        engine, router = children_of(process.pid)
        with watched([engine, router]) as files:
            os.kill(engine, signal.SIGKILL)
            _, stderr = await process.communicate()
            await asyncio.gather(*map(ended, files))
    assert process.returncode == 1
    assert stderr.decode().startswith("bench demo: replicas ended with signal 9; its output ends:\n")
    assert {path.name for path in logs.iterdir()} == {"replicas.log", "router-round_robin.log"}


class Mistaken(TraceScenario):
    """Expects blocks half as wide as its engines make them."""

    @property
    def width(self) -> int:
        return super().width // 2


async def test_a_fleet_with_another_block_width_than_expected_does_not_pass(trace: Path, tmp_path: Path) -> None:
    scenario = Mistaken(trace=trace, first_rows=8, replicas=1, speedup=100)
    (run,) = await run_policies(scenario, ["kv"], console=Console(quiet=True), log_dir=tmp_path)
    details = [breach.detail for breach in run.breaches]
    assert details == [
        "advertised block width is 128, not 64",
        "emitted block width is 128, not 64",
        "router hashes at 128 tokens a block, not 64",
    ]
