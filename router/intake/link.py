"""One connection to a socket of an engine, over TCP or a Unix socket: messages at hand, no more read than is taken.

While messages are at hand the link does not read, so what a fast peer sends waits at the peer: what lies here is what
one read of the event loop brought, and one unfinished message. Everything happens in the thread of the event loop; a
message costs no thread, no future and no wake-up of its own. Knows nothing of events and sequence numbers.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from typing import cast

from contract.endpoint import EndpointError, parse_tcp
from router.intake.zmtp import Zmtp, ZmtpError, encode_message

__all__ = ["Link", "reach", "require_reachable"]

HANDSHAKE_SECONDS = 10.0
RETRY_SECONDS = 0.1
BYTES_A_TURN = 128 * 1024
_IPC, _UNIX_PATH_BYTES = "ipc://", 107
_KEEPALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}


class Link(asyncio.Protocol):
    """``wake`` is called when messages are at hand, and once when the connection is lost.

    ``opened`` is done when the peer has greeted, ``closed`` when the connection is lost; what went wrong is in ``why``.
    """

    def __init__(self, kind: str, *, most_bytes: int, wake: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        self.opened: asyncio.Future[None] = loop.create_future()
        self.closed: asyncio.Future[None] = loop.create_future()
        self.why: ZmtpError | None = None
        self._loop = loop
        self._wake = wake
        self._zmtp = Zmtp(kind, most_bytes=most_bytes)
        self._messages = self._zmtp.messages
        self._transport: asyncio.Transport | None = None
        self._paused = False

    def next(self) -> list[bytes] | None:
        """The next message at hand, or None; then the link reads on."""
        if self._messages:
            return self._messages.popleft()
        if self._paused:
            self._read_on()
        return None

    def send(self, frames: Sequence[bytes]) -> None:
        """Send a message; it is lost where the connection is."""
        assert self._zmtp.ready, "nothing is sent before the peer has greeted"
        if self._transport is not None:
            self._transport.write(encode_message(frames))

    def close(self) -> None:
        """Hang up. A second call does nothing."""
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.abort()

    # What the event loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        self._transport = cast("asyncio.Transport", transport)
        _keep_alive(self._transport.get_extra_info("socket"))
        self._transport.write(self._zmtp.opening)

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        try:
            answer = self._zmtp.receive(data)
        except ZmtpError as error:
            self.why = error
            self.close()
            return
        if answer and self._transport is not None:
            self._transport.write(answer)
        if self._zmtp.ready and not self.opened.done():
            self.opened.set_result(None)
        if self._messages:
            self._wake()
        if self._messages:
            self._pause()
        elif len(data) >= BYTES_A_TURN:  # the loop would go on with this connection for as long as so much comes
            self._pause()
            self._loop.call_soon(self._read_on)

    def pause_writing(self) -> None:
        """See `asyncio.Protocol`. Little is ever sent, so this is a peer that asks and does not read the answers."""
        self.why = ZmtpError("the peer does not read what it asked for")
        self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self._transport = None
        if not self.closed.done():
            self.closed.set_result(None)
        self._wake()

    def _pause(self) -> None:
        if self._transport is not None and not self._paused:
            self._paused = True
            self._transport.pause_reading()

    def _read_on(self) -> None:
        if self._transport is not None and self._paused and not self._messages:
            self._paused = False
            self._transport.resume_reading()


def require_reachable(endpoint: str) -> None:
    """Raise EndpointError unless this names a place that can be connected to."""
    if not endpoint.startswith(_IPC):
        if not parse_tcp(endpoint).port:
            raise EndpointError(f"{endpoint!r}: nobody listens on port 0")
    elif not 0 < len(_unix_path(endpoint).encode()) <= _UNIX_PATH_BYTES:
        raise EndpointError(f"{endpoint!r}: a socket's path has 1 to {_UNIX_PATH_BYTES} bytes")


async def reach(
    endpoint: str,
    kind: str,
    *,
    most_bytes: int,
    wake: Callable[[], None],
    on_refusal: Callable[[ZmtpError], None],
) -> Link:
    """A link to a peer that has greeted, tried for until there is one; the caller bounds the time.

    ``on_refusal`` is told of every peer that answers and cannot be talked to.
    """
    while True:
        link = Link(kind, most_bytes=most_bytes, wake=wake)
        try:
            async with asyncio.timeout(HANDSHAKE_SECONDS):
                await _connect(endpoint, link)
                await asyncio.wait([link.opened, link.closed], return_when=asyncio.FIRST_COMPLETED)
        except (OSError, UnicodeError):  # among them TimeoutError, and names that cannot be resolved
            pass
        except BaseException:
            link.close()
            raise
        if link.opened.done() and not link.closed.done():
            return link
        link.close()
        if link.why is not None:
            on_refusal(link.why)
        await asyncio.sleep(RETRY_SECONDS)


async def _connect(endpoint: str, link: Link) -> None:
    loop = asyncio.get_running_loop()
    if endpoint.startswith(_IPC):
        await loop.create_unix_connection(lambda: link, _unix_path(endpoint))
    else:
        address = parse_tcp(endpoint)
        await loop.create_connection(lambda: link, address.host.strip("[]"), address.port)


def _unix_path(endpoint: str) -> str:
    """The path of an ``ipc://`` endpoint; ``@`` begins a name in Linux' abstract namespace."""
    path = endpoint.removeprefix(_IPC)
    return "\0" + path[1:] if path.startswith("@") else path


def _keep_alive(connection: socket.socket) -> None:
    """Have a host that is gone without a word noticed within a minute, where the system can tell."""
    if connection.family != socket.AF_UNIX:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEPALIVE.items():
            if hasattr(socket, name):
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
