"""Where a rank process sits among the others, and where they all meet.

Values only: what the engine decides for the ranks that it starts, or torchrun's environment for those it starts.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

__all__ = ["Cluster", "Meeting", "Seat", "SeatError", "as_environment", "torchrun_seat"]

_RANK, _SIZE, _LOCAL_RANK, _LOCAL_SIZE = "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"
_HOST, _PORT = "MASTER_ADDR", "MASTER_PORT"
_AGENT_STORE = "TORCHELASTIC_USE_AGENT_STORE"
_ATTEMPT = "TORCHELASTIC_RESTART_COUNT"


class SeatError(ValueError):
    """An environment that says only half of where this process sits."""


class Meeting(msgspec.Struct, frozen=True, kw_only=True):
    """The address at which ranks find each other (a ``torch.distributed.TCPStore``).

    Rank 0 serves it, from the listening socket ``listen_fd`` where it inherited one; ``served`` says that somebody
    else does already, which is torchrun's agent. ``attempt`` tells a world from those that torchrun started before it.
    """

    host: str
    port: int
    listen_fd: int | None = None
    served: bool = False
    attempt: str = "0"


class Seat(msgspec.Struct, frozen=True, kw_only=True):
    """Rank ``rank`` of ``size``, and its place among the ``local_size`` ranks of its machine."""

    rank: int
    size: int
    local_rank: int
    local_size: int


class Cluster(msgspec.Struct, frozen=True, kw_only=True):
    """Ranks on several machines, or under another launcher.

    Ranks ``[0, started_here)`` are children of the engine, among ``local_size`` ranks of its machine; all others come
    to ``meeting``, whose host is an address of this machine.
    """

    started_here: int
    local_size: int
    meeting: Meeting


def torchrun_seat(environ: Mapping[str, str]) -> tuple[Seat, Meeting] | None:
    """What torchrun's variables say; None where there are none of them.

    Raises:
        SeatError: some are missing, or one is no number.
    """
    names = (_RANK, _SIZE, _LOCAL_RANK, _LOCAL_SIZE, _HOST, _PORT)
    missing = [name for name in names if name not in environ]
    if _RANK in missing or _SIZE in missing:
        return None
    if missing:
        raise SeatError(f"the environment has {_RANK} and {_SIZE}, as torchrun sets them, but no {', '.join(missing)}")
    try:
        rank, size, local_rank, local_size, port = (
            int(environ[name]) for name in (_RANK, _SIZE, _LOCAL_RANK, _LOCAL_SIZE, _PORT)
        )
    except ValueError as error:
        raise SeatError(f"a variable of torchrun's is no number: {error}") from None
    meeting = Meeting(
        host=environ[_HOST],
        port=port,
        served=environ.get(_AGENT_STORE) == "True",
        attempt=environ.get(_ATTEMPT, "0"),
    )
    return Seat(rank=rank, size=size, local_rank=local_rank, local_size=local_size), meeting


def as_environment(seat: Seat, meeting: Meeting) -> dict[str, str]:
    """The variables that tell a process so."""
    return {
        _RANK: str(seat.rank),
        _SIZE: str(seat.size),
        _LOCAL_RANK: str(seat.local_rank),
        _LOCAL_SIZE: str(seat.local_size),
        _HOST: meeting.host,
        _PORT: str(meeting.port),
    }
