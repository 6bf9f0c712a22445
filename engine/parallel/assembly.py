"""How the ranks of a world come together: started here, or let in from elsewhere, until all are built."""

from __future__ import annotations

import pickle
import socket
import sys
from contextlib import ExitStack

import msgspec

from contract.endpoint import bracket
from engine.parallel.channel import Kind
from engine.parallel.front_door import FrontDoor
from engine.parallel.member import start_rank
from engine.parallel.messages import HeadAddress, Order
from engine.parallel.rank_process import START_SECONDS, Build
from engine.parallel.roster import Roster
from engine.parallel.seat import Cluster, Meeting, Seat

__all__ = ["assembled"]

_HERE = Meeting(host="127.0.0.1", port=0)


def assembled(*, size: int, build: Build, device: str, timeout: float, cluster: Cluster | None) -> Roster:
    """All ranks of a world, built and waiting for tasks.

    Raises:
        RankFailedError: a rank did not come, or failed to build; none is left then.
        OSError: the meeting's address is taken, or not this machine's.
    """
    if cluster is None:
        cluster = Cluster(started_here=size, local_size=size, meeting=_HERE)
    with ExitStack() as undo:
        listener = None if cluster.meeting.served else undo.enter_context(_listen(cluster.meeting))
        door = FrontDoor(cluster.meeting.host, plan=repr(build)) if cluster.started_here < size else None
        roster = Roster(size=size, door=door)
        undo.callback(roster.kill)
        for rank in range(cluster.started_here):
            order = Order(
                seat=Seat(rank=rank, size=size, local_rank=rank, local_size=cluster.local_size),
                meeting=_as_bound(cluster.meeting, listener),
                device=device,
                timeout=timeout,
                import_path=sys.path,
                build=pickle.dumps(build),
                head=_head(door, rank),
            )
            roster.add(start_rank(order, listener=listener if rank == 0 else None))
        roster.collect(Kind.READY, seconds=START_SECONDS)
        roster.lock_door()
        undo.pop_all()
    if listener is not None:
        listener.close()  # rank 0 has it
    return roster


def _listen(meeting: Meeting) -> socket.socket:
    try:
        return socket.create_server((meeting.host, meeting.port), backlog=128)
    except OSError as error:
        raise OSError(f"ranks cannot meet at {bracket(meeting.host)}:{meeting.port}: {error.strerror}") from None


def _as_bound(meeting: Meeting, listener: socket.socket | None) -> Meeting:
    """The meeting with the port that the system chose, and the socket that rank 0 inherits."""
    if listener is None:
        return meeting
    return msgspec.structs.replace(meeting, port=listener.getsockname()[1], listen_fd=listener.fileno())


def _head(door: FrontDoor | None, rank: int) -> HeadAddress | None:
    return None if door is None or rank else door.address
