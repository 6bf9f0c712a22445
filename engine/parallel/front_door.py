"""Where ranks that this process did not start connect to it: torchrun's, and those of other machines."""

from __future__ import annotations

import secrets
import socket
from contextlib import suppress

import msgspec

from engine.parallel.channel import Channel, ChannelError, Kind
from engine.parallel.interface import own_address
from engine.parallel.member import Member
from engine.parallel.messages import HeadAddress, Hello
from engine.parallel.world import RankFailedError

__all__ = ["FrontDoor", "introduce"]

_HELLO_SECONDS = 5.0
_DARK_SECONDS = 6
_SILENT_PEER = (
    (socket.TCP_KEEPIDLE, _DARK_SECONDS - 3),
    (socket.TCP_KEEPINTVL, 1),
    (socket.TCP_KEEPCNT, 3),
    (socket.TCP_USER_TIMEOUT, _DARK_SECONDS * 1000),
)
"""A machine that went dark or was cut off is noticed after 6 seconds, whether or not it owes an acknowledgement."""


class FrontDoor:
    """Listens on the interface that faces ``host``. Whoever does not know the token is turned away."""

    def __init__(self, host: str, *, plan: str) -> None:
        self._plan = plan
        address = own_address(host)
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._listener = socket.create_server((address, 0), family=family)
        self.address = HeadAddress(host=address, port=self._listener.getsockname()[1], token=secrets.token_hex(16))

    def fileno(self) -> int:
        """The listening socket's, to be polled."""
        return self._listener.fileno()

    def admit(self) -> Member | None:
        """Whoever stands at the door; None where it is nobody of ours.

        Raises:
            RankFailedError: it is a rank, but would build something else than the others.
        """
        connection, _ = self._listener.accept()
        _configure(connection)
        channel = Channel(connection)
        hello = _hello(channel)
        if hello is None or not secrets.compare_digest(hello.token, self.address.token):
            channel.close()
            return None
        member = Member(rank=hello.rank, channel=channel, pid=hello.pid, host=hello.host)
        if hello.plan != self._plan:
            channel.close()
            raise RankFailedError(f"{member} was started with other flags: {_difference(hello.plan, self._plan)}")
        return member

    def close(self) -> None:
        """Take no more connections."""
        self._listener.close()


def _difference(theirs: str, ours: str) -> str:
    """What two plans, written as ``Plan(name=value, ...)``, do not have in common."""
    sides = [dict.fromkeys(part.rpartition("(")[2].rstrip(")") for part in side.split(", ")) for side in (theirs, ours)]
    only = [", ".join(part for part in side if part not in other) for side, other in (sides, sides[::-1])]
    return f"it has {only[0]}, here is {only[1]}"


def introduce(hello: Hello, head: HeadAddress) -> Channel:
    """Connect to an engine as one of its ranks.

    Raises:
        OSError: it cannot be reached.
    """
    connection = socket.create_connection((head.host, head.port), timeout=_HELLO_SECONDS)
    _configure(connection)
    channel = Channel(connection)
    channel.send(Kind.HELLO, msgspec.msgpack.encode(hello))
    return channel


def _configure(connection: socket.socket) -> None:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _SILENT_PEER:
        connection.setsockopt(socket.IPPROTO_TCP, option, value)


def _hello(channel: Channel) -> Hello | None:
    with suppress(ChannelError, TimeoutError, msgspec.MsgspecError):
        kind, payload = channel.receive(timeout=_HELLO_SECONDS)
        if kind is Kind.HELLO:
            return msgspec.msgpack.decode(payload, type=Hello)
    return None
