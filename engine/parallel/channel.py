"""Frames between an engine and one of its rank processes, over a connected stream socket.

A frame is its length (four bytes, little endian, counting what follows), one byte that says what it is, and a payload.
Knows nothing of what payloads mean; one thread at a time may use a channel.
"""

from __future__ import annotations

import enum
import socket
import struct
import time
from typing import NamedTuple

__all__ = ["MAX_FRAME_BYTES", "Channel", "ChannelError", "Frame", "Kind"]

MAX_FRAME_BYTES = 256 * 1024 * 1024
_HEAD = struct.Struct("<IB")
_LENGTH_BYTES = 4
_READ_BYTES = 64 * 1024


class ChannelError(ConnectionError):
    """The other side is gone, or does not keep to the frames."""


class Kind(enum.IntEnum):
    """What a frame is."""

    HELLO = 1
    """To the engine: who connects."""
    READY = 2
    """To the engine: the rank is built."""
    TASK = 3
    """To the rank: work on this."""
    DONE = 4
    """To the engine: the task's result."""
    FAILED = 5
    """To the engine: the rank is about to end, and why."""
    CLOSE = 6
    """To the rank: there will be no more tasks."""
    ORDER = 7
    """To the rank: what to be."""


_KINDS = {int(kind): kind for kind in Kind}


class Frame(NamedTuple):
    """One frame."""

    kind: Kind
    payload: bytes


class Channel:
    """One end of a connection."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._unread = bytearray()

    def fileno(self) -> int:
        """The socket's, to be polled."""
        return self._socket.fileno()

    def send(self, kind: Kind, payload: bytes = b"", *, timeout: float | None = None) -> None:
        """Send a frame whole.

        Raises:
            ChannelError: the other side is gone.
            TimeoutError: it does not take the frame.
        """
        assert len(payload) < MAX_FRAME_BYTES, f"a frame of {len(payload)} bytes, at most {MAX_FRAME_BYTES} may be sent"
        self._socket.settimeout(timeout)
        try:
            self._socket.sendall(_HEAD.pack(len(payload) + 1, kind) + payload)
        except TimeoutError:
            raise
        except OSError as error:
            raise ChannelError(f"the connection is lost: {error.strerror}") from None

    def receive(self, *, timeout: float | None = None) -> Frame:
        """The next frame.

        Raises:
            ChannelError: the other side is gone, or sent what is no frame.
            TimeoutError: none came.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while (frame := self._take()) is None:
            self._socket.settimeout(None if deadline is None else max(deadline - time.monotonic(), 0.0))
            self._unread += self._read()
        return frame

    def close(self) -> None:
        """Hang up. Idempotent."""
        self._socket.close()

    def _take(self) -> Frame | None:
        if len(self._unread) < _HEAD.size:
            return None
        length, kind = _HEAD.unpack_from(self._unread)
        if not (0 < length <= MAX_FRAME_BYTES and kind in _KINDS):
            raise ChannelError(f"not a frame: kind {kind} of {length} bytes")
        stop = _LENGTH_BYTES + length
        if len(self._unread) < stop:
            return None
        frame = Frame(_KINDS[kind], bytes(self._unread[_HEAD.size : stop]))
        del self._unread[:stop]
        return frame

    def _read(self) -> bytes:
        try:
            data = self._socket.recv(_READ_BYTES)
        except (TimeoutError, BlockingIOError):
            raise TimeoutError("no frame came in time") from None
        except OSError as error:
            raise ChannelError(f"the connection is lost: {error.strerror}") from None
        if not data:
            raise ChannelError("the connection is closed")
        return data
