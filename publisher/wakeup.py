"""Ends another thread's wait on file descriptors."""

from __future__ import annotations

import contextlib
import socket

__all__ = ["Wakeup"]

_DRAIN_BYTES = 4096


class Wakeup:
    """A byte through a socket pair: any thread calls ``set``; one thread polls ``fileno()`` and calls ``clear``."""

    def __init__(self) -> None:
        self._receiver, self._sender = socket.socketpair()
        self._receiver.setblocking(False)
        self._sender.setblocking(False)

    def fileno(self) -> int:
        """Descriptor that is readable once ``set`` has been called."""
        return self._receiver.fileno()

    def set(self) -> None:
        """Wake the waiting thread. Never blocks, never fails."""
        # A full pair means that a wake-up is under way already, a closed one that nobody waits any more.
        with contextlib.suppress(OSError):
            self._sender.send(b"\0")

    def clear(self) -> None:
        """Forget the wake-ups so far."""
        with contextlib.suppress(BlockingIOError):
            self._receiver.recv(_DRAIN_BYTES)

    def close(self) -> None:
        """Free both descriptors."""
        self._receiver.close()
        self._sender.close()
