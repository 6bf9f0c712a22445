"""An engine that is driven in its own environment, in lockstep with a test. See ``engines/lockstep.py``."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from patience import PATIENCE

from router.conformance.judge import judge
from router.conformance.listener import Target, Watch
from router.conformance.rules import Finding
from router.fleet.identity import Stream

ROOT = Path(__file__).parent.parent.parent
DRIVERS = Path(__file__).parent / "engines"
NAMES = ("sglang", "vllm")
WATCHED_STEPS = 200


def python_of(name: str) -> Path:
    """The interpreter of an engine's environment, whether it is there or not."""
    return ROOT / f".venv-interop-{name}" / "bin" / "python"


def installed(name: str) -> bool:
    """Whether the environment was made to its end."""
    return python_of(name).exists() and (python_of(name).parent.parent / ".installed").exists()


def seed() -> int:
    """A fresh seed a run, printed; ``KVSTEER_SEED`` brings a run back."""
    chosen = int(os.environ.get("KVSTEER_SEED") or secrets.randbelow(2**31))
    print(f"KVSTEER_SEED={chosen}")
    return chosen


class DrivenEngine:
    """A driver process; ``open`` replaces the engine opened before."""

    def __init__(self, name: str) -> None:
        environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}
        environment.pop("PYTHONPATH", None)
        self._process = subprocess.Popen(
            [python_of(name), DRIVERS / f"{name}_driver.py"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self._opened = False
        self.asked: dict[str, Any] = {}
        self.prompts: list[list[int]] = []

    def open(self, **asked: Any) -> dict[str, Any]:
        """A fresh engine, seeded; what it says of itself."""
        self.close()
        asked = {"seed": seed(), "topic": "kv-events"} | asked
        self.prompts.clear()
        self.asked, self._opened = asked, True
        return self._ask("open", asked)

    def step(self) -> dict[str, Any]:
        """Let it do one step; the truth after it."""
        truth = self._ask("step", {})
        self.prompts += truth.pop("prompts")
        return truth

    def close(self) -> None:
        """Stop its publisher."""
        if self._opened:
            self._ask("close", {})
        self._opened = False

    def end(self) -> None:
        """End the process; at once, because engines take their time to end."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.kill()
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()

    def _ask(self, verb: str, arguments: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({verb: arguments}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"the driver has ended; its complaint is above: {verb} {arguments}"
        answer: dict[str, Any] = json.loads(line)
        return answer


def driven(name: str) -> Iterator[DrivenEngine]:
    """One driver process for all tests of an engine: importing one takes long."""
    assert name in NAMES, name
    if not installed(name):
        pytest.skip(f"{name} is not installed in .venv-interop-{name}: `make interop` does it")
    engine = DrivenEngine(name)
    yield engine
    engine.end()


async def conformance(engine: DrivenEngine, stream: Stream, *, advertised_width: int) -> list[Finding]:
    """Judge an engine's publisher while the engine is at work."""
    address = stream.address
    target = Target(endpoint=address.endpoint, replay_endpoint=address.replay_endpoint, topic=stream.topic)
    watch = Watch(target)
    watching = asyncio.create_task(watch.run(PATIENCE))
    steps = 0
    while not watching.done():
        engine.step()
        await asyncio.sleep(0.01)
        steps += watch.heard > 0
        if steps == WATCHED_STEPS:
            watch.stop()
    return judge(watching.result(), advertised_width=advertised_width)
