"""One engine on two hosts: started by torchrun or by hand, the answers of one host, ends that leave nothing behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from engine_process import EngineProcess
from patience import PATIENCE
from process_table import assert_gone, children
from two_hosts import ADDRESSES, HostProcess, TwoHosts, two_hosts, why_not

REASON = why_not()
pytestmark = pytest.mark.skipif(REASON is not None, reason=REASON or "")

READY = "kvsteer-engine ready "
PORT = "29511"
TINY = ("--model-path", "tiny", "--device", "cpu", "--page-size", "3", "--max-total-tokens", "3000")
ENGINE = ("-m", "engine", *TINY, "--host", ADDRESSES[0], "--port", "0", "--rank-timeout", "20")
BODY = {"prompt": "On rank", "max_tokens": 8, "temperature": 0, "ignore_eos": True}
ASK = """
import sys, urllib.request
_, url, body = sys.argv
request = urllib.request.Request(url, body.encode(), {"Content-Type": "application/json"})
sys.stdout.write(urllib.request.urlopen(request).read().decode())
"""


@pytest.fixture
def hosts() -> Iterator[TwoHosts]:
    with two_hosts() as hosts:
        yield hosts


def completion(hosts: TwoHosts, url: str) -> dict[str, Any]:
    """Asked from the other host."""
    command = hosts.command(1, sys.executable, "-c", ASK, f"{url}/v1/completions", json.dumps(BODY))
    return dict(json.loads(subprocess.run(command, check=True, capture_output=True, timeout=PATIENCE).stdout))


@pytest.fixture(scope="module")
def expected() -> str:
    """The answer of one rank on one host."""
    with EngineProcess(*TINY) as engine:
        url = engine.wait_ready().url
        command = [sys.executable, "-c", ASK, f"{url}/v1/completions", json.dumps(BODY)]
        answer = json.loads(subprocess.run(command, check=True, capture_output=True, timeout=PATIENCE).stdout)
        return str(answer["choices"][0]["text"])


def torchrun(hosts: TwoHosts, node: int) -> HostProcess:
    launcher = ("--nnodes", "2", "--nproc-per-node", "2", "--node-rank", str(node), "--max-restarts", "0")
    meeting = ("--master-addr", ADDRESSES[0], "--master-port", PORT)
    sizes = ("--tp-size", "4", "--dcp-size", "2")
    return HostProcess(hosts, node, "-m", "torch.distributed.run", *launcher, *meeting, *ENGINE, *sizes)


def by_hand(hosts: TwoHosts, node: int) -> HostProcess:
    nodes = ("--nnodes", "2", "--node-rank", str(node), "--dist-init-addr", f"{ADDRESSES[0]}:{PORT}")
    return HostProcess(hosts, node, *ENGINE, *nodes, "--tp-size", "2", "--dcp-size", "2")


def descendants(pid: int) -> list[int]:
    found = children(pid)
    return found + [below for child in found for below in descendants(child)]


def test_torchrun_on_two_hosts_serves_what_one_rank_answers_and_ends_together(hosts: TwoHosts, expected: str) -> None:
    with ExitStack() as stack:
        nodes = [stack.enter_context(torchrun(hosts, node)) for node in (0, 1)]
        url = nodes[0].wait_for(READY)
        assert completion(hosts, url)["choices"][0]["text"] == expected
        pids = [pid for node in nodes for pid in descendants(node.process.pid)]
        assert len(pids) >= 5  # a server with a rank of its own, and three ranks that follow
        (server,) = [pid for pid in descendants(nodes[0].process.pid) if _has_rank_of_its_own(pid)]
        os.kill(server, signal.SIGTERM)
        assert [node.process.wait(PATIENCE) for node in nodes] == [0, 0], nodes[0].output + nodes[1].output
        assert_gone(pids)


def _has_rank_of_its_own(pid: int) -> bool:
    return any(b"rank_process" in _command(child) for child in children(pid))


def _command(pid: int) -> bytes:
    with open(f"/proc/{pid}/cmdline", "rb") as file:
        return file.read()


def test_two_hosts_by_hand_serve_and_a_rank_lost_on_the_far_one_ends_both(hosts: TwoHosts, expected: str) -> None:
    with by_hand(hosts, 1) as far, by_hand(hosts, 0) as near:
        url = near.wait_for(READY)
        assert completion(hosts, url)["choices"][0]["text"] == expected
        pids = descendants(far.process.pid) + descendants(near.process.pid)
        (rank,) = children(far.process.pid)
        os.kill(rank, signal.SIGKILL)
        assert near.process.wait(PATIENCE) == 1
        assert far.process.wait(PATIENCE) == 1
        blame = rf"rank 1 \(pid {rank} on \S+\) is gone: the connection to it ended"
        assert re.fullmatch(rf"kvsteer-engine: error: .* has stopped: {blame}", near.output.splitlines()[-1])
        assert far.output.splitlines()[-1] == f"kvsteer-engine: error: rank 1 (pid {rank}) was killed by SIGKILL"
        assert_gone(pids)


def test_a_server_that_is_killed_ends_the_ranks_of_the_far_host(hosts: TwoHosts) -> None:
    with by_hand(hosts, 1) as far, by_hand(hosts, 0) as near:
        near.wait_for(READY)
        pids = descendants(far.process.pid) + descendants(near.process.pid)
        near.process.kill()
        assert far.process.wait(PATIENCE) == 1
        assert "rank 1: the engine at 10.213.77.1:" in far.output
        assert_gone(pids)


def test_hosts_that_are_cut_off_from_each_other_both_end(hosts: TwoHosts) -> None:
    with by_hand(hosts, 1) as far, by_hand(hosts, 0) as near:
        near.wait_for(READY)
        pids = descendants(far.process.pid) + descendants(near.process.pid)
        hosts.cut()
        assert near.process.wait(PATIENCE) == 1
        assert far.process.wait(PATIENCE) == 1
        assert re.search(r"has stopped: rank 1 \(pid \d+ on \S+\) is gone: the connection to it ended\n", near.output)
        assert "rank 1: the engine at 10.213.77.1:" in far.output
        assert_gone(pids)


def test_a_host_with_other_flags_is_refused_by_name(hosts: TwoHosts) -> None:
    meeting = ("--nnodes", "2", "--node-rank", "1", "--dist-init-addr", f"{ADDRESSES[0]}:{PORT}")
    other = HostProcess(hosts, 1, *ENGINE, *meeting, "--tp-size", "2", "--dcp-size", "1")
    with other, by_hand(hosts, 0) as near:
        assert near.process.wait(PATIENCE) == 1
        difference = "it has dcp_size=1, .*, here is dcp_size=2, .*"
        blame = rf"rank 1 \(pid \d+ on \S+\) was started with other flags: {difference}\n"
        assert re.fullmatch(f"kvsteer-engine: error: {blame}", near.output)
        assert other.process.wait(PATIENCE) == 1
