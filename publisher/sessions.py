"""Replays in progress: one session a reader, each a cursor into the log, served in turns.

A session never holds up anything: a reader that is full is tried again a moment later, one that stays full is given up,
and a snapshot in the making is waited for by looking, not by blocking. Knows no sockets and reads no clock: it is told
how to send and what time it is (seconds, monotonic).
"""

from __future__ import annotations

import enum
import logging
from collections import deque
from collections.abc import Callable, Sequence

import msgspec

from contract.framing import Frame, replay_end, replay_reply
from publisher.complaint import Complaint
from publisher.counters import PublisherCounters
from publisher.outbox import Outbox
from publisher.snapshot import SnapshotCall, SnapshotDesk

__all__ = ["Delivery", "ReplayLimits", "ReplaySessions", "Send"]

logger = logging.getLogger(__name__)


class Delivery(enum.Enum):
    """What became of a message: taken, no room at the reader now, or no such reader any more."""

    SENT = enum.auto()
    FULL = enum.auto()
    GONE = enum.auto()


Send = Callable[[bytes, Sequence[bytes]], Delivery]
"""Offers the frames of one message to the reader of that identity, without blocking."""


class ReplayLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of the replay side. Further requests wait unread while ``sessions`` replays are in progress."""

    sessions: int = 64
    queue: int = 1000
    """Messages that may wait in the socket for one reader."""
    burst: int = 16
    """Batches one session sends before the next one has its turn, and live traffic before that."""
    retry_seconds: float = 0.005
    """How soon a reader whose queue was full is tried again: ZMQ does not tell when one of many has room."""
    stall_seconds: float = 10.0
    """How long a reader may accept nothing before it is given up."""
    snapshot_seconds: float = 10.0
    """How long a replay waits for a snapshot before it does without."""


class _Session:
    """One reader's place: batches read from the log and not yet taken, then [cursor, stop) of the log, then the end."""

    def __init__(self, *, start: int, stop: int, now: float) -> None:
        self.cursor = start
        self.stop = stop
        self.ready: deque[Frame] = deque()
        self.moved_at = now
        self.resume_at = now
        self.snapshot: SnapshotCall | None = None

    @property
    def due_at(self) -> float:
        """When this session must be looked at again, if nothing happens before."""
        return self.resume_at if self.snapshot is None else self.snapshot.deadline


class ReplaySessions:
    """All replays of one lane. Used by the sender thread only."""

    def __init__(
        self,
        outbox: Outbox,
        *,
        topic: bytes,
        counters: PublisherCounters,
        limits: ReplayLimits,
        snapshots: SnapshotDesk | None = None,
    ) -> None:
        self._outbox = outbox
        self._topic = topic
        self._counters = counters
        self._limits = limits
        self._snapshots = snapshots
        self._sessions: dict[bytes, _Session] = {}
        self._complain_stalled = Complaint(logger, "replay given up, %d so far: the reader accepted nothing for %g s")
        self._complain_snapshot = Complaint(logger, "replay without a snapshot, %d so far: %s")

    @property
    def has_room(self) -> bool:
        """Whether another request may be read."""
        return len(self._sessions) < self._limits.sessions

    @property
    def due_at(self) -> float | None:
        """When ``advance`` has something to do again, if nothing happens before; ``None``: never."""
        return min((session.due_at for session in self._sessions.values()), default=None)

    def open(self, identity: bytes, start: int, *, now: float) -> None:
        """Begin a replay of what is there now from ``start`` on; it takes the place of the reader's earlier one."""
        session = _Session(start=start, stop=self._outbox.next_seq, now=now)
        if self._snapshots is not None and start < self._outbox.first_seq:
            session.snapshot = self._snapshots.ask(now=now)
        self._sessions[identity] = session

    def advance(self, send: Send, *, now: float) -> None:
        """Give every session that can go on its turn."""
        for identity, session in list(self._sessions.items()):
            if self._can_go_on(session, now) and not self._serve(identity, session, send, now):
                del self._sessions[identity]

    def _can_go_on(self, session: _Session, now: float) -> bool:
        if session.snapshot is None:
            return now >= session.resume_at
        return self._collect_snapshot(session, session.snapshot, now)

    def _collect_snapshot(self, session: _Session, call: SnapshotCall, now: float) -> bool:
        """Whether the wait is over; the session then starts with the snapshot, or with what the log has."""
        if not call.frame.done() and now < call.deadline:
            return False
        session.snapshot = None
        session.moved_at = session.resume_at = now
        problem = call.frame.exception() if call.frame.done() else TimeoutError("the engine has not answered in time")
        if problem is not None:
            self._counters.snapshot_errors += 1
            self._complain_snapshot(self._counters.snapshot_errors, f"{type(problem).__name__}: {problem}")
            return True
        frame = call.frame.result()
        session.ready.append(frame)
        session.cursor, session.stop = frame.seq + 1, self._outbox.next_seq
        self._counters.snapshots += 1
        return True

    def _serve(self, identity: bytes, session: _Session, send: Send, now: float) -> bool:
        """Send up to one burst. Whether the session is to go on."""
        for _ in range(self._limits.burst):
            frame = self._upcoming(session)
            delivery = send(identity, replay_end() if frame is None else replay_reply(frame))
            if delivery is Delivery.FULL:
                return self._hold(session, now)
            if delivery is Delivery.GONE:
                self._counters.replays_dropped += 1
                return False
            session.moved_at = now
            if frame is None:
                self._counters.replays += 1
                return False
            session.ready.popleft()
            self._counters.replayed += 1
        return True

    def _upcoming(self, session: _Session) -> Frame | None:
        """The batch to send next, ``None`` for the end."""
        if not session.ready and session.cursor < session.stop:
            self._read_on(session)
        return session.ready[0] if session.ready else None

    def _read_on(self, session: _Session) -> None:
        batches = self._outbox.read(session.cursor, stop=session.stop, limit=self._limits.burst)
        reached = batches[0][0] if batches else session.stop
        self._counters.replay_missing += reached - session.cursor
        session.ready.extend(Frame(self._topic, seq, payload) for seq, payload in batches)
        session.cursor = reached + len(batches)

    def _hold(self, session: _Session, now: float) -> bool:
        """Try again later, unless nothing was accepted for too long."""
        if now - session.moved_at < self._limits.stall_seconds:
            session.resume_at = now + self._limits.retry_seconds
            return True
        self._counters.replays_dropped += 1
        self._complain_stalled(self._counters.replays_dropped, self._limits.stall_seconds)
        return False
