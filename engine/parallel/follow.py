"""A rank that the engine did not start: torchrun's, or one of a machine that only holds ranks."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack

import msgspec

from engine.parallel.front_door import introduce
from engine.parallel.lifeline import end_with_engine, end_with_parent
from engine.parallel.member import epitaph
from engine.parallel.messages import HeadAddress, Hello
from engine.parallel.rank_process import HEAD_KEY, START_SECONDS, Build, live
from engine.parallel.role import Follower, Launcher
from engine.parallel.seat import Seat, as_environment

__all__ = ["follow", "launch"]


def follow(role: Follower, *, build: Build, device: str, timeout: float, grace: float, program: str) -> int:
    """Be a rank until the engine ends: 0 if it closed the ranks in order.

    SIGTERM leaves ``grace`` seconds: under torchrun the engine gets it too, and finishes requests first.

    Raises:
        CollectiveError: there is nobody at the meeting.
        OSError: the engine's machine cannot be reached.
    """
    end_with_parent(signal.SIGKILL, parent=os.getppid())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: signal.alarm(1 + int(grace)))
    from engine.parallel.distributed import awaited, meet

    store = meet(role.seat, role.meeting, seconds=START_SECONDS)
    head = msgspec.json.decode(awaited(store, HEAD_KEY), type=HeadAddress)
    hello = Hello(token=head.token, rank=role.seat.rank, pid=os.getpid(), host=socket.gethostname(), plan=repr(build))
    channel = introduce(hello, head)
    lost = f"{program}: error: rank {role.seat.rank}: the engine at {head.host}:{head.port} is gone\n"
    end_with_engine(channel, last_words=lost)
    return live(
        channel,
        seat=role.seat,
        meeting=role.meeting,
        device=device,
        timeout=timeout,
        store=lambda: store,
        build=build,
    )


def launch(role: Launcher, command: Sequence[str]) -> str | None:
    """Run ``command`` as every rank of this machine: None if all end well, else who did not; the others are ended."""
    with ExitStack() as stop:
        running: dict[int, Seat] = {}
        for seat in role.seats:
            environment = os.environ | as_environment(seat, role.meeting)
            process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL)
            stop.callback(process.kill)
            running[process.pid] = seat
        while running:
            pid, outcome = os.wait()
            status = os.waitstatus_to_exitcode(outcome)
            seat = running.pop(pid)
            if status:
                return f"rank {seat.rank} (pid {pid}) {epitaph(status)}"
    return None
