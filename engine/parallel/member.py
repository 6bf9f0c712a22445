"""A rank process as the engine sees it: started here, or connected from another machine."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass

import msgspec

from engine.parallel.channel import Channel, ChannelError, Kind
from engine.parallel.messages import Order

__all__ = ["Member", "epitaph", "start_rank"]

_MODULE = "engine.parallel.rank_process"
_DYING_SECONDS = 1.0
_LOCAL_RANK_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",  # ranks share the cores: more threads would fight for them
    "TORCH_CPP_LOG_LEVEL": "ERROR",  # what goes wrong is said once, by the engine
}


@dataclass(frozen=True)
class Member:
    """One rank. ``process`` is set for a child of this process, ``host`` for a rank of another machine or launcher."""

    rank: int
    channel: Channel
    pid: int
    process: subprocess.Popen[bytes] | None = None
    host: str | None = None

    def __str__(self) -> str:
        place = "" if self.host is None else f" on {self.host}"
        return f"rank {self.rank} (pid {self.pid}{place})"

    def obituary(self) -> str:
        """What became of it, now that its connection has ended."""
        if self.process is None:
            return "is gone: the connection to it ended"
        try:
            status = self.process.wait(_DYING_SECONDS)
        except subprocess.TimeoutExpired:
            return "has hung up"
        return epitaph(status)

    def kill(self) -> None:
        """End it at once: a child by force, others by hanging up, at which they end themselves."""
        if self.process is not None:
            self.process.kill()
            with suppress(subprocess.TimeoutExpired):  # stuck in a driver; it ends as soon as that lets it
                self.process.wait(_DYING_SECONDS)
        self.channel.close()

    def end(self, seconds: float) -> None:
        """Wait for it to end by itself after ``CLOSE``, then be done with it by force."""
        with suppress(ChannelError, TimeoutError):  # it hangs up, as it should, or it does not
            self.channel.receive(timeout=seconds)
        if self.process is not None:
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(_DYING_SECONDS)
        self.kill()


def epitaph(status: int) -> str:
    """How a process ended, by what ``Popen`` calls its return code."""
    return f"was killed by {signal.Signals(-status).name}" if status < 0 else f"exited with status {status}"


def start_rank(order: Order, *, listener: socket.socket | None) -> Member:
    """Start a rank process that lives no longer than the calling thread, with ``listener`` as its ``listen_fd``."""
    ours, theirs = socket.socketpair()
    seat = order.seat
    with theirs:
        inherited = [theirs.fileno()] if listener is None else [theirs.fileno(), listener.fileno()]
        name = f"rank-{seat.rank}-of-{seat.size}"
        process = subprocess.Popen(
            [sys.executable, "-m", _MODULE, str(theirs.fileno()), str(os.getpid()), name],
            env=_LOCAL_RANK_ENVIRONMENT | os.environ,
            pass_fds=inherited,
            stdin=subprocess.DEVNULL,
            stdout=2,  # our own standard output is for those who wait for ready lines
            start_new_session=True,  # Ctrl-C is meant for us
        )
    channel = Channel(ours)
    channel.send(Kind.ORDER, msgspec.msgpack.encode(order))
    return Member(rank=seat.rank, channel=channel, pid=process.pid, process=process)
