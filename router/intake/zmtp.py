"""ZMTP 3.0 as the connecting side of a connection speaks it: bytes in; messages, and bytes to answer, out.

Source: RFC 23 (ZMTP 3.0) and RFC 37 (ZMTP 3.1) of the ZeroMQ project, and what libzmq 4.3.5 does. Mechanism NULL only,
which is what engines use. The version announced is 3.0, so that every peer since libzmq 4.0 takes a subscription as a
message; a ping of 3.1 is answered all the same. Nothing but the greeting and READY may go out before the peer's READY
has come: libzmq would take it for a part of the handshake and hang up.

No sockets, no clock. What is kept is one unfinished message, as far as it has come, within a bound.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from contract.keys_core import PLAIN_ONLY

try:
    from router.intake._zmtp import cut
except ImportError:
    cut = None  # type: ignore[assignment]

__all__ = ["Zmtp", "ZmtpError", "encode_message", "subscription"]

GREETING_BYTES = 64
MOST_FRAMES = 64
_GREETING = b"\xff" + bytes(8) + b"\x7f" + b"\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
_MORE, _LONG, _COMMAND = 1, 2, 4
_SHORT_HEAD, _LONG_HEAD = 2, 9
_PEERS = {"SUB": ("PUB", "XPUB"), "DEALER": ("ROUTER", "DEALER", "REP")}
_TTL_BYTES, _PING_BYTES = 2, 16
_SHOWN = 80
_CUT = None if PLAIN_ONLY else cut
"""Takes the messages that are whole and plain, and leaves the rest to the Python below, which can take them all."""


class ZmtpError(ValueError):
    """A peer that cannot be talked to, or that sent what it must not; the message says what."""


class Zmtp:
    """One connection of a SUB or DEALER socket. Send ``opening``, feed ``receive``, and take from ``messages``.

    ``ready`` once the peer has greeted: from then on messages may be sent.
    """

    def __init__(self, kind: str, *, most_bytes: int) -> None:
        """``most_bytes`` bounds a message."""
        self.opening = _GREETING + _frame(_command(b"READY", _property(b"Socket-Type", kind.encode())), _COMMAND)
        self.messages: deque[list[bytes]] = deque()
        self.ready = False
        self._kind = kind
        self._most_bytes = most_bytes
        self._greeted = False
        self._frames: list[bytes] = []
        self._frames_bytes = 0
        self._rest: list[bytes] = []
        self._rest_bytes = 0
        self._needed = GREETING_BYTES
        self._answer = b""

    def receive(self, data: bytes) -> bytes:
        """Take in what has come; what to answer at once.

        Raises:
            ZmtpError: the connection is of no use any more.
        """
        whole = data if not self._rest else self._joined(data)
        if len(whole) >= self._needed:
            at = 0 if self._greeted else self._take_greeting(whole)
            at, self._needed = self._take_frames(whole, at)
            whole = whole[at:]
        if whole:
            self._rest.append(whole)
            self._rest_bytes += len(whole)
        answer, self._answer = self._answer, b""
        return answer

    def _joined(self, data: bytes) -> bytes:
        """What is kept and what has come, once that is enough to go on: a long frame is put together only once."""
        if self._rest_bytes + len(data) < self._needed:
            return data
        whole = b"".join([*self._rest, data])
        self._rest, self._rest_bytes = [], 0
        return whole

    def _take_greeting(self, data: bytes) -> int:
        """Where frames begin, behind a greeting that we can answer."""
        if data[0] != 0xFF or not data[9] & 1:
            raise ZmtpError(f"the peer does not speak ZMTP: it begins with {data[:16]!r}")
        if data[10] < 3:
            raise ZmtpError(f"the peer speaks ZMTP {data[10]}, which is older than 3")
        mechanism = data[12:32].rstrip(b"\0")
        if mechanism != b"NULL":
            raise ZmtpError(f"the peer wants the security mechanism {mechanism!r}, only NULL is known here")
        self._greeted = True
        return GREETING_BYTES

    def _take_frames(self, data: bytes, at: int) -> tuple[int, int]:
        """Take all whole frames; where the first begins that is not whole, and how many bytes it takes to go on."""
        size = len(data)
        if _CUT is not None and self.ready and not self._frames:
            messages, at = _CUT(data, at, self._most_bytes, MOST_FRAMES)
            self.messages.extend(messages)
        while size - at >= _SHORT_HEAD:
            flags = data[at]
            if flags & _LONG:
                if size - at < _LONG_HEAD:
                    return at, _LONG_HEAD
                start, length = at + _LONG_HEAD, int.from_bytes(data[at + 1 : at + _LONG_HEAD], "big")
            else:
                start, length = at + _SHORT_HEAD, data[at + 1]
            if self._frames_bytes + length > self._most_bytes:
                raise ZmtpError(f"a message of {self._frames_bytes + length} bytes, above {self._most_bytes}")
            if start + length > size:
                return at, start + length - at
            at = start + length
            self._take_frame(flags, data[start:at])
        return at, _SHORT_HEAD

    def _take_frame(self, flags: int, body: bytes) -> None:
        if flags & _COMMAND:
            self._take_command(body)
            return
        if not self.ready:
            raise ZmtpError("a message before the handshake is done")
        self._frames.append(body)
        if not flags & _MORE:
            self.messages.append(self._frames)
            self._frames, self._frames_bytes = [], 0
        elif len(self._frames) == MOST_FRAMES:
            raise ZmtpError(f"a message of more than {MOST_FRAMES} frames")
        else:
            self._frames_bytes += len(body)

    def _take_command(self, body: bytes) -> None:
        """READY ends the handshake, ERROR says why there is none, PING is answered; others mean nothing here."""
        end = 1 + body[0] if body else 0
        name, rest = body[1:end], body[end:]
        if name == b"READY" and not self.ready:
            self._require_peer(_properties(rest).get(b"socket-type", b"").decode("ascii", "replace"))
            self.ready = True
        elif name == b"ERROR" and not self.ready:
            raise ZmtpError(f"the peer refuses: {rest[1:_SHOWN]!r}")
        elif name == b"PING":
            self._answer += _frame(_command(b"PONG", rest[_TTL_BYTES:][:_PING_BYTES]), _COMMAND)

    def _require_peer(self, kind: str) -> None:
        if kind not in _PEERS[self._kind]:
            raise ZmtpError(f"the peer is a {kind[:_SHOWN]!r} socket, not {' or '.join(_PEERS[self._kind])}")


def encode_message(frames: Sequence[bytes]) -> bytes:
    """A message as bytes."""
    *first, last = frames
    return b"".join(_frame(frame, _MORE) for frame in first) + _frame(last, 0)


def subscription(topic: str) -> list[bytes]:
    """The message by which a SUB socket asks for what begins with a topic."""
    return [b"\x01" + topic.encode()]


def _frame(body: bytes, flags: int) -> bytes:
    if len(body) > 0xFF:
        return bytes([flags | _LONG]) + len(body).to_bytes(8, "big") + body
    return bytes([flags, len(body)]) + body


def _command(name: bytes, body: bytes) -> bytes:
    return bytes([len(name)]) + name + body


def _property(name: bytes, value: bytes) -> bytes:
    return bytes([len(name)]) + name + len(value).to_bytes(4, "big") + value


def _properties(data: bytes) -> dict[bytes, bytes]:
    """Properties by their names in small letters, since case says nothing; what is broken off is left out."""
    found, at = {}, 0
    while at < len(data):
        start = at + 1 + data[at]
        end = start + 4 + int.from_bytes(data[start : start + 4], "big")
        found[data[at + 1 : start].lower()] = data[start + 4 : end]
        at = end
    return found
