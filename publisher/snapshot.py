"""What an engine holds now, asked for when a replay reaches further back than the log.

The engine's hook is not ours: it may be slow, raise, or never return. It runs on a thread of its own, one call at a
time, and whoever needs the answer looks for it and does not wait.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future

import msgspec

from contract.events import Event
from contract.framing import Frame

__all__ = ["Snapshot", "SnapshotCall", "SnapshotDesk"]


class Snapshot(msgspec.Struct, frozen=True):
    """Stores that add up to everything the engine held after it published batch ``seq``."""

    seq: int
    events: Sequence[Event]


class SnapshotCall(msgspec.Struct, frozen=True):
    """One call of the hook. After ``deadline`` (seconds, monotonic) nobody should wait for it any longer."""

    frame: Future[Frame]
    deadline: float


class SnapshotDesk:
    """Has snapshots made, one at a time; requests that come meanwhile share the one in the making."""

    def __init__(self, make: Callable[[], Frame], *, patience: float, notify: Callable[[], None]) -> None:
        """``make`` may take its time; ``notify`` is called on its thread when a call has ended; patience in seconds."""
        self._make = make
        self._patience = patience
        self._notify = notify
        self._call: SnapshotCall | None = None

    def ask(self, *, now: float) -> SnapshotCall:
        """The call in flight, or a new one."""
        if self._call is None or self._call.frame.done():
            self._call = SnapshotCall(Future(), now + self._patience)
            # A daemon: a hook that never returns must not keep the process alive.
            threading.Thread(target=self._run, args=(self._call.frame,), name="kv-snapshot", daemon=True).start()
        return self._call

    def _run(self, frame: Future[Frame]) -> None:
        try:
            frame.set_result(self._make())
        except Exception as error:  # counted and logged by the replay that waits for it
            frame.set_exception(error)
        self._notify()
