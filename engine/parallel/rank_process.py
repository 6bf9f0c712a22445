"""The life of a rank as a process: join the others, build, work on tasks until told to close.

``python -m engine.parallel.rank_process FD PARENT NAME`` is how `ProcessWorld` starts one on its own machine; ``FD`` is
the channel, ``NAME`` is for people who read process lists. Knows nothing of what the work is.
"""

from __future__ import annotations

import os
import pickle
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn

import msgspec

from engine.parallel.channel import Channel, ChannelError, Kind
from engine.parallel.group import Group
from engine.parallel.lifeline import end_with_engine, end_with_parent
from engine.parallel.messages import Failure, Order
from engine.parallel.seat import Meeting, Seat
from engine.parallel.world import CollectiveError

if TYPE_CHECKING:  # torch is imported where its absence can be reported
    from engine.parallel.distributed import Store

__all__ = ["HEAD_KEY", "START_SECONDS", "Build", "Work", "leave", "live", "main"]

Work = Callable[[bytes], bytes]
Build = Callable[[Group], Work]
HEAD_KEY = "head"
"""Where rank 0 leaves the engine's address for ranks of other machines."""
START_SECONDS = 600.0
"""What machines that are started by hand may lie apart, and models may take to load."""
_LIFELINE_SECONDS = 30.0
_FAILED_STATUS = 1


def main(argv: list[str]) -> int:
    """A rank that this machine's engine started: its exit status."""
    fd, parent = int(argv[0]), int(argv[1])
    end_with_parent(signal.SIGKILL, parent=parent)
    for number in (signal.SIGTERM, signal.SIGINT):  # meant for the engine, which closes its ranks in order
        signal.signal(number, signal.SIG_IGN)
    channel = Channel(socket.socket(fileno=fd))
    try:
        _, payload = channel.receive()
    except ChannelError:
        return _FAILED_STATUS
    end_with_engine(channel)
    order = msgspec.msgpack.decode(payload, type=Order)
    sys.path[:] = order.import_path
    return live(
        channel,
        seat=order.seat,
        meeting=order.meeting,
        device=order.device,
        timeout=order.timeout,
        store=lambda: _met(order),
        build=lambda group: pickle.loads(order.build)(group),
    )


def _met(order: Order) -> Store:
    from engine.parallel.distributed import meet

    store = meet(order.seat, order.meeting, seconds=START_SECONDS)
    if order.head is not None:
        store.set(HEAD_KEY, msgspec.json.encode(order.head).decode())
    return store


def live(
    channel: Channel,
    *,
    seat: Seat,
    meeting: Meeting,
    device: str,
    timeout: float,
    store: Callable[[], Store],
    build: Build,
) -> int:
    """Be rank ``seat`` until told to close: 0. Whatever fails is told to the engine as last words: 1."""
    try:
        import torch

        from engine.parallel.device import rank_device
        from engine.parallel.distributed import joined

        place = rank_device(device, local_rank=seat.local_rank, local_size=seat.local_size)
        _share_cores(place.type)
        with torch.inference_mode(), joined(store(), seat, meeting, device=place, timeout=timeout) as group:
            _serve(channel, build(group))  # the work goes before the group: NCCL waits for graphs with collectives
    except ChannelError:  # the engine has hung up: the lifeline says so and ends this process, once it gets to run
        time.sleep(_LIFELINE_SECONDS)
        return _FAILED_STATUS
    except Exception as error:  # the process's top level: it ends, and says why
        with suppress(ChannelError, TimeoutError):
            channel.send(Kind.FAILED, msgspec.msgpack.encode(_last_words(error)), timeout=1.0)
        return _FAILED_STATUS
    return 0


def _share_cores(device: str) -> None:
    """Let ranks that wait for each other on few cores take turns in long slices: collectives took a third of the time
    with four ranks on two cores."""
    if device == "cpu":
        with suppress(PermissionError):
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def _serve(channel: Channel, work: Work) -> None:
    channel.send(Kind.READY)
    while True:
        kind, payload = channel.receive()
        if kind is not Kind.TASK:
            return
        channel.send(Kind.DONE, work(payload))


def _last_words(error: Exception) -> Failure:
    return Failure(
        error=" ".join(f"{type(error).__name__}: {error}".split()),  # one line
        trace="".join(traceback.format_exception(error)),
        waiting=isinstance(error, CollectiveError),
    )


def leave(status: int) -> NoReturn:
    """End the process, not by way of torch's threads, which may hang on ranks that are gone."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    leave(main(sys.argv[1:]))
