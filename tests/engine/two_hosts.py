"""Two hosts on one machine: network namespaces with a cable between them. Needs root, Linux and iproute2."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Self

from patience import PATIENCE

__all__ = ["ADDRESSES", "HostProcess", "TwoHosts", "two_hosts", "why_not"]

ROOT = Path(__file__).parent.parent.parent
ADDRESSES = ("10.213.77.1", "10.213.77.2")


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


def why_not() -> str | None:
    """Why this machine can have no two hosts; None if it can."""
    if shutil.which("ip") is None:
        return "iproute2 is not installed"
    probe = f"kvprobe{os.getpid()}"
    try:
        _ip("netns", "add", probe)
        _ip("netns", "exec", probe, "true")
    except (subprocess.CalledProcessError, OSError) as error:
        return f"no network namespaces here: {getattr(error, 'stderr', error)}"
    finally:
        subprocess.run(["ip", "netns", "del", probe], capture_output=True)
    return None


class TwoHosts:
    """Their namespaces' names; host ``n`` has the address ``ADDRESSES[n]``."""

    def __init__(self) -> None:
        self.names = [f"kvhost{os.getpid()}-{index}" for index in range(2)]
        self.ends = [f"kv{os.getpid() % 100_000}e{index}" for index in range(2)]

    def command(self, host: int, *command: str) -> list[str]:
        return ["ip", "netns", "exec", self.names[host], *command]

    def cut(self) -> None:
        """Take the cable out: neither host is told anything of the other any more."""
        for name, end in zip(self.names, self.ends, strict=True):
            _ip("-n", name, "link", "set", end, "down")


@contextmanager
def two_hosts() -> Iterator[TwoHosts]:
    """Both hosts, up and connected; gone afterwards, with the cable."""
    hosts = TwoHosts()
    ends = hosts.ends
    with ExitStack() as undo:
        for name in hosts.names:
            _ip("netns", "add", name)
            undo.callback(_ip, "netns", "del", name)
        _ip("link", "add", ends[0], "netns", hosts.names[0], "type", "veth", "peer", ends[1], "netns", hosts.names[1])
        for name, end, address in zip(hosts.names, ends, ADDRESSES, strict=True):
            _ip("-n", name, "addr", "add", f"{address}/24", "dev", end)
            _ip("-n", name, "link", "set", end, "up")
            _ip("-n", name, "link", "set", "lo", "up")
        yield hosts


class HostProcess:
    """A Python program on one of the hosts, with all that it starts. A context: leaving it ends the process."""

    def __init__(self, hosts: TwoHosts, host: int, *program: str) -> None:
        self._output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        self.process = subprocess.Popen(
            hosts.command(host, sys.executable, *program),
            cwd=ROOT,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            stdout=self._output,
            stderr=subprocess.STDOUT,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        self._output.close()

    @property
    def output(self) -> str:
        return os.pread(self._output.fileno(), 1_000_000, 0).decode()

    def wait_for(self, text: str) -> str:
        """The rest of the line behind ``text``, once the process has written it."""
        deadline = time.monotonic() + PATIENCE
        while True:
            for line in self.output.splitlines(keepends=True):
                if text in line and line.endswith("\n"):
                    return line.partition(text)[2].strip()
            assert self.process.poll() is None, f"it has ended: {self.output}"
            assert time.monotonic() < deadline, f"no {text!r} in: {self.output}"
            time.sleep(0.05)
