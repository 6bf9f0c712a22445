"""One trial of a service: events over ZMQ into a process of its own, until the last of each lane has been taken in.

What is measured is read from outside, by process id: the CPU time that the service used from the first frame to the
last, and the memory that it then held beyond what it held when all had subscribed. The publisher's time is not in it.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from bench.index.trial import resident_bytes
from bench.index.wire_source import last_block_ids
from bench.tether import tethered

__all__ = ["ServiceError", "dynamo_indexer", "our_service"]

LOOK_SECONDS = 0.02
START_SECONDS = 60.0
LISTENER_SECONDS = 120.0
_Child = subprocess.Popen[str]


class ServiceError(RuntimeError):
    """A service or its publisher that did not do its part; the message says which, and what it did."""


def our_service(*, lanes: int, block: int, entries: int) -> dict[str, float]:
    """CPU seconds and bytes for each entry, of our subscribers and index."""
    with (
        _source(lanes, block, entries) as (source, told),
        _child([sys.executable, "-m", "bench.index.our_service"]) as service,
    ):
        _tell(service, json.dumps(told))
        return _measure(source, service.pid, told["stored"], lambda: _heard(service, "done"))


def dynamo_indexer(python: Path, *, lanes: int, block: int, entries: int) -> dict[str, float]:
    """The same of Dynamo's standalone indexer, with as many threads as it takes by default."""
    port = _free_port()
    with (
        _source(lanes, block, entries) as (source, told),
        _child([str(python), "-m", "dynamo.indexer", "--port", str(port)]) as service,
        closing(_connected(port, service)) as api,
    ):
        for lane, events in enumerate(told["ports"]):
            place = {"endpoint": f"tcp://127.0.0.1:{events}", "instance_id": lane, "dp_rank": 0}
            _post(api, "/register", place | {"model_name": "m", "block_size": block})
        return _measure(source, service.pid, told["stored"], lambda: _wait_visible(api, lanes, block))


def _measure(source: _Child, pid: int, stored: int, wait: Callable[[], object]) -> dict[str, float]:
    _heard(source, "subscribed")
    memory, cpu = resident_bytes(pid), _cpu_seconds(pid)
    _tell(source, "go")
    wait()
    return {"ingest_s": (_cpu_seconds(pid) - cpu) / stored, "bytes": (resident_bytes(pid) - memory) / stored}


def _cpu_seconds(pid: int) -> float:
    """User and system time of all threads of a process, as Linux counts it: in hundredths of a second."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def _child(command: Sequence[str]) -> Iterator[_Child]:
    """A process that is led by lines and cannot outlive this one."""
    pipe = subprocess.PIPE
    quiet = os.environ | {"DYN_LOG": "error"}
    with subprocess.Popen(tethered(command), stdin=pipe, stdout=pipe, text=True, env=quiet) as child:
        try:
            yield child
        finally:
            child.kill()


@contextmanager
def _source(lanes: int, block: int, entries: int) -> Iterator[tuple[_Child, dict[str, Any]]]:
    """The publishing process, and what it said of itself when it was ready."""
    sizes = [f"--{name}={size}" for name, size in (("lanes", lanes), ("block", block), ("entries", entries))]
    with _child([sys.executable, "-m", "bench.index.wire_source", *sizes]) as source:
        yield source, json.loads(_heard(source, "ready"))


def _heard(child: _Child, word: str) -> str:
    """The rest of the next line that a child says, which begins with this word."""
    assert child.stdout is not None, "children are started with pipes"
    said, _, rest = child.stdout.readline().partition(" ")
    if said.strip() != word:
        raise ServiceError(f"{child.args!r} was to say {word!r}, but said {said!r}")
    return rest


def _tell(child: _Child, line: str) -> None:
    assert child.stdin is not None, "children are started with pipes"
    child.stdin.write(line + "\n")
    child.stdin.flush()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def _connected(port: int, service: _Child) -> http.client.HTTPConnection:
    """A connection that stays; without delays, since requests go out in two pieces."""
    deadline = time.monotonic() + START_SECONDS
    while True:
        api = http.client.HTTPConnection("127.0.0.1", port, timeout=LISTENER_SECONDS)
        try:
            api.connect()
        except OSError:
            if service.poll() is not None or time.monotonic() > deadline:
                raise ServiceError(f"the indexer on port {port} does not answer") from None
            time.sleep(LOOK_SECONDS)
        else:
            api.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return api


def _post(api: http.client.HTTPConnection, path: str, body: object) -> Any:
    api.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    answer = api.getresponse()
    content = answer.read()
    if answer.status >= http.client.BAD_REQUEST:
        raise ServiceError(f"{path} was answered by {answer.status}: {content!r}")
    return json.loads(content)


def _wait_visible(api: http.client.HTTPConnection, lanes: int, block: int) -> None:
    """Until the last block of every lane is found: all that came before it has been taken in."""
    deadline = time.monotonic() + LISTENER_SECONDS
    for lane in range(lanes):
        query = {"model_name": "m", "token_ids": last_block_ids(lane, block)}
        while not _post(api, "/query", query)["scores"].get(str(lane)):
            if time.monotonic() > deadline:
                raise ServiceError(f"the indexer has not taken in lane {lane} within {LISTENER_SECONDS:g} s")
            time.sleep(LOOK_SECONDS)
