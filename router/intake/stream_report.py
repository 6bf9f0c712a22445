"""What a stream and its subscription tell of themselves: state, counts, and the bounds they keep. Values only."""

from __future__ import annotations

import enum

import msgspec

__all__ = ["StreamLimits", "StreamState", "StreamStatus", "SubscriberLimits", "SubscriberStatus"]


class StreamState(enum.StrEnum):
    """Where a stream stands. Only ``live`` means that what the index holds is what the engine holds."""

    CONNECTING = "connecting"
    JOINING = "joining"
    LIVE = "live"
    REPLAYING = "replaying"
    UNTRUSTED = "untrusted"


class StreamLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of what a stream keeps: live batches held while a replay runs, and digests of batches applied."""

    held_batches: int = 10_000
    held_bytes: int = 64 * 2**20
    remembered: int = 4_096


class StreamStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A stream in numbers. ``reason`` says why it is untrusted.

    ``known_from`` is the first batch of the history behind what is held: 0 is all of it, None is nothing yet.
    ``gaps`` counts holes seen, ``lost`` the batches that stayed missing. Times are those passed in.
    """

    state: StreamState
    reason: str | None
    last_seq: int
    known_from: int | None
    batches: int
    replayed: int
    duplicates: int
    gaps: int
    lost: int
    restarts: int
    replays: int
    replay_failures: int
    rejected_batches: int
    held: int
    held_dropped: int
    last_event_time: float | None


class SubscriberLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds and times. Seconds, unless the name says otherwise.

    ``reply_deadline`` is the longest wait for the next answer of a replay, ``attempts`` the tries at one replay with
    ``backoff`` between them, doubled each time. ``settle`` after each connect, the last batch is verified once more:
    a subscription takes effect a moment after its connection. While a lane is untrusted it is tried to recover after
    ``recover``, doubled each time up to ``recover_most``.
    """

    reply_deadline: float = 2.0
    attempts: int = 2
    backoff: float = 0.25
    settle: float = 0.25
    recover: float = 30.0
    recover_most: float = 600.0
    message_bytes: int = 256 * 2**20
    stream: StreamLimits = StreamLimits()


class SubscriberStatus(StreamStatus, frozen=True, kw_only=True):
    """The stream's status, and what only the socket knows."""

    connected: bool
    connects: int
    malformed: int
