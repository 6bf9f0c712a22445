"""What this process is in a world of rank processes: the engine, a rank of it, or the launcher of some. Values only."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from contract.endpoint import EndpointError, parse_tcp
from engine.parallel.seat import Cluster, Meeting, Seat, SeatError, torchrun_seat

__all__ = ["Follower", "Head", "Launcher", "NodePlan", "Role", "role_of"]


class NodePlan(msgspec.Struct, frozen=True, kw_only=True):
    """Machine ``node`` of ``nodes``, which hold equally many ranks; all meet at ``address`` (``HOST:PORT``) of node 0.

    Raises:
        SeatError: no such node, or no usable address.
    """

    nodes: int = 1
    node: int = 0
    address: str | None = None

    def __post_init__(self) -> None:
        if self.nodes < 1:
            raise SeatError(f"nnodes must be at least 1, got {self.nodes}")
        if not 0 <= self.node < self.nodes:
            raise SeatError(f"node_rank {self.node} is not in [0, {self.nodes}), nnodes is {self.nodes}")
        if self.nodes > 1:
            _ = self.meeting

    def seats(self, size: int) -> list[Seat]:
        """Where the ranks of this machine sit in a world of ``size``.

        Raises:
            SeatError: they do not divide.
        """
        if size % self.nodes:
            raise SeatError(f"tp_size {size} ranks do not divide over {self.nodes} nodes")
        share = size // self.nodes
        return [
            Seat(rank=self.node * share + local, size=size, local_rank=local, local_size=share)
            for local in range(share)
        ]

    @property
    def meeting(self) -> Meeting:
        """Where the ranks of all machines meet."""
        if self.address is None:
            raise SeatError(f"nnodes {self.nodes} needs dist_init_addr, the HOST:PORT of node 0 at which ranks meet")
        try:
            address = parse_tcp(f"tcp://{self.address}")
        except EndpointError as error:
            raise SeatError(f"dist_init_addr: {error}") from None
        if not address.port:
            raise SeatError(f"dist_init_addr {self.address!r} needs a port that all nodes know, not 0")
        return Meeting(host=address.host.strip("[]"), port=address.port)


class Head(msgspec.Struct, frozen=True):
    """Serve; ``cluster`` says which ranks are elsewhere, where some are, ``launched`` that torchrun is our parent."""

    cluster: Cluster | None = None
    launched: bool = False


class Follower(msgspec.Struct, frozen=True, kw_only=True):
    """Be one rank of an engine that another process is."""

    seat: Seat
    meeting: Meeting


class Launcher(msgspec.Struct, frozen=True, kw_only=True):
    """Start followers for all ranks of this machine."""

    seats: list[Seat]
    meeting: Meeting


Role = Head | Follower | Launcher


def role_of(plan: NodePlan, *, size: int, environ: Mapping[str, str]) -> Role:
    """What to be, in a world of ``size`` ranks; torchrun's variables come before ``plan``.

    Raises:
        SeatError: ranks do not divide over nodes, or torchrun started more or fewer than ``size``.
    """
    given = torchrun_seat(environ)
    if given is None or given[0].size == size == 1:
        return _by_plan(plan, size)
    seat, meeting = given
    if seat.size != size:
        raise SeatError(f"torchrun started {seat.size} ranks (WORLD_SIZE), tp_size is {size}")
    if seat.rank:
        return Follower(seat=seat, meeting=meeting)
    return Head(Cluster(started_here=1, local_size=seat.local_size, meeting=meeting), launched=True)


def _by_plan(plan: NodePlan, size: int) -> Head | Launcher:
    seats = plan.seats(size)
    if plan.node:
        return Launcher(seats=seats, meeting=plan.meeting)
    if plan.nodes == 1:
        return Head()
    return Head(Cluster(started_here=len(seats), local_size=len(seats), meeting=plan.meeting))
