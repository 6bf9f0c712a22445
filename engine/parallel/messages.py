"""What an engine and its rank processes tell each other besides tasks and results."""

from __future__ import annotations

import msgspec

from engine.parallel.seat import Meeting, Seat

__all__ = ["Failure", "HeadAddress", "Hello", "Order"]


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """A rank's last words.

    ``waiting`` tells a rank that gave up on others, in a collective or while joining, from one that failed itself.
    """

    error: str
    trace: str
    waiting: bool


class HeadAddress(msgspec.Struct, frozen=True, kw_only=True):
    """Where the engine takes connections of ranks that it did not start, and the ``token`` that they show."""

    host: str
    port: int
    token: str


class Hello(msgspec.Struct, frozen=True, kw_only=True):
    """How such a rank introduces itself. ``plan`` is what it is about to build, in words that must equal ours."""

    token: str
    rank: int
    pid: int
    host: str
    plan: str


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank process is to be. ``build`` is pickled; it travels from parent to child only.

    ``head`` is what rank 0 tells ranks of other machines, where there are any.
    """

    seat: Seat
    meeting: Meeting
    device: str
    timeout: float
    import_path: list[str]
    build: bytes
    head: HeadAddress | None = None
