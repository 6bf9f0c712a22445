"""A real engine process for tests: started on ports that the system chose, and always ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO, Self

from patience import PATIENCE

ROOT = Path(__file__).parent.parent.parent
READY = "kvsteer-engine ready "
FREE_SIM = ("--sim-step-us", "0", "--sim-prefill-us-per-token", "0", "--sim-decode-us-per-sequence", "0")
"""A clock that takes no time."""
SMALL = ("--page-size", "3", "--tp-size", "2", "--dcp-size", "2")
"""The default geometry of tests: blocks of 6 tokens."""
EVENTS = '{"publisher":"zmq","endpoint":"tcp://127.0.0.1:0","bind":true,"replay_endpoint":"tcp://127.0.0.1:0"}'


class EngineProcess:
    """``python -m engine FLAGS --port 0``, or another program in its place. A context: leaving it ends the process."""

    def __init__(self, *flags: str, program: tuple[str, ...] = ("-m", "engine")) -> None:
        self.stderr_file: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        self.process = subprocess.Popen(
            [sys.executable, *program, "--port", "0", *flags],
            cwd=ROOT,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=self.stderr_file,
            text=True,
        )
        self.urls: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.stderr_file.close()

    @property
    def url(self) -> str:
        return self.urls[0]

    @property
    def stderr(self) -> str:
        self.stderr_file.seek(0)
        return self.stderr_file.read().decode()

    def wait_ready(self, replicas: int = 1) -> Self:
        """Read the ready lines; the test's own timeout is the deadline."""
        assert self.process.stdout is not None
        while len(self.urls) < replicas:
            line = self.process.stdout.readline()
            assert line.startswith(READY), f"no ready line but {line!r}; stderr: {self.stderr}"
            self.urls.append(line.removeprefix(READY).strip())
        return self

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal and wait: the exit status."""
        self.process.send_signal(number)
        return self.process.wait(PATIENCE)
