"""What was seen of a publisher: raw frames as they came, live and in answer to replay requests. Values only."""

from __future__ import annotations

import enum
from collections.abc import Sequence

import msgspec

__all__ = ["Asked", "LiveMessage", "Observation", "ReplaySession"]

Frames = Sequence[bytes]


class Asked(enum.StrEnum):
    """Why a replay was asked for."""

    HISTORY = "from 0, when joining"
    ALL = "from 0"
    NEWEST = "from the newest batch"
    BEYOND_END = "from beyond the end"
    MALFORMED = "by malformed requests, then from beyond the end"


class LiveMessage(msgspec.Struct, frozen=True):
    """One message of the subscription. ``connection`` counts from 1 how often it had been made by then."""

    frames: Frames
    connection: int


class ReplaySession(msgspec.Struct, frozen=True, kw_only=True):
    """The answers to one request, the end marker among them, in order of arrival.

    ``live_before`` and ``live_after`` count the live messages that had arrived when the request was sent, and when the
    last answer had come. ``silent``: the time for an answer had passed without the end marker.
    """

    asked: Asked
    start: int
    replies: Sequence[Frames]
    live_before: int
    live_after: int
    silent: bool


class Observation(msgspec.Struct, frozen=True, kw_only=True):
    """Everything seen. ``full``: the bound on what is kept was reached, so watching ended early."""

    reached: bool
    live: Sequence[LiveMessage]
    sessions: Sequence[ReplaySession]
    full: bool = False

    def session(self, asked: Asked) -> ReplaySession | None:
        """The session of one purpose, if there was one."""
        return next((session for session in self.sessions if session.asked is asked), None)
