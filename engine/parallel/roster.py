"""The rank processes of one world: who is there, what they say, and who is to blame when one is lost.

One thread at a time may listen.
"""

from __future__ import annotations

import select
import time
from collections.abc import Iterator, Sequence

import msgspec

from engine.parallel.channel import ChannelError, Frame, Kind
from engine.parallel.front_door import FrontDoor
from engine.parallel.inquest import Inquest
from engine.parallel.member import Member
from engine.parallel.messages import Failure
from engine.parallel.world import RankFailedError

__all__ = ["Roster"]

_SETTLE_SECONDS = 1.0
"""How long others are heard after one rank said that it waited in vain."""


class Roster:
    """Ranks ``[0, size)``: those that are added, and those that come in through ``door``."""

    def __init__(self, *, size: int, door: FrontDoor | None = None) -> None:
        self._size = size
        self._door = door
        self._members: dict[int, Member] = {}
        self._by_fd: dict[int, Member] = {}
        self._poll = select.poll()
        if door is not None:
            self._poll.register(door, select.POLLIN)

    @property
    def members(self) -> Sequence[Member]:
        """Those who are there, in rank order."""
        return [self._members[rank] for rank in sorted(self._members)]

    def add(self, member: Member) -> None:
        """Count a rank in."""
        self._members[member.rank] = member
        self._by_fd[member.channel.fileno()] = member
        self._poll.register(member.channel, select.POLLIN)

    def lock_door(self) -> None:
        """Let nobody in any more."""
        if self._door is not None:
            self._poll.unregister(self._door)
            self._door.close()
            self._door = None

    def collect(self, wanted: Kind, *, seconds: float) -> list[bytes]:
        """One ``wanted`` frame of every rank: their payloads in rank order.

        Raises:
            RankFailedError: a rank is lost, or not all answered within ``seconds``.
        """
        answers: dict[int, bytes] = {}
        deadline = time.monotonic() + seconds
        while len(answers) < self._size:
            for member in self._speaking(deadline):
                frame = self._hear(member, deadline)
                if frame is None or frame.kind is not wanted:
                    raise self._verdict(Inquest(self._names(), answered=answers), first=(member, frame))
                answers[member.rank] = frame.payload
            if len(answers) < self._size and time.monotonic() >= deadline:
                raise RankFailedError(Inquest(self._names(), answered=answers).verdict(patience=seconds))
        return [answers[rank] for rank in range(self._size)]

    def loss(self) -> RankFailedError:
        """Which rank was lost, once it is known that one was."""
        return self._verdict(Inquest(self._names()))

    def _verdict(self, inquest: Inquest, *, first: tuple[Member, Frame | None] | None = None) -> RankFailedError:
        if first is not None:
            _testify(inquest, *first)
        deadline = time.monotonic() + _SETTLE_SECONDS
        while not inquest.settled and time.monotonic() < deadline:
            for member in self._speaking(deadline):
                _testify(inquest, member, self._hear(member, deadline))
        error = RankFailedError(inquest.verdict(patience=_SETTLE_SECONDS))
        if inquest.trace is not None:
            error.__cause__ = _RankTraceback(inquest.trace)
        return error

    def kill(self) -> None:
        """End all of them at once."""
        self.lock_door()
        for member in self._members.values():
            member.kill()

    def _speaking(self, deadline: float) -> Iterator[Member]:
        """Members with something to say, a hang-up included; none if nobody speaks before ``deadline``."""
        left = max(deadline - time.monotonic(), 0.0)
        for fd, _ in self._poll.poll(left * 1000):
            if fd in self._by_fd:
                yield self._by_fd[fd]
            else:
                self._admit()

    def _admit(self) -> None:
        assert self._door is not None, "somebody speaks who is not on the roster"
        member = self._door.admit()
        if member is None:
            return
        if member.rank in self._members or not 0 <= member.rank < self._size:
            member.channel.close()
            raise RankFailedError(f"{member} cannot join: the world has {self._size} ranks and it is not missing")
        self.add(member)

    def _hear(self, member: Member, deadline: float) -> Frame | None:
        """The member's next frame; None where it is lost, and then it is not listened to any more."""
        try:
            return member.channel.receive(timeout=max(deadline - time.monotonic(), 0.0))
        except TimeoutError:  # half a frame
            return None
        except ChannelError:
            self._poll.unregister(member.channel)
            return None

    def _names(self) -> list[str]:
        missing = "rank {} (which has not come)"
        return [str(self._members.get(rank, missing.format(rank))) for rank in range(self._size)]


def _testify(inquest: Inquest, member: Member, frame: Frame | None) -> None:
    if frame is None:
        inquest.gone(member.rank, member.obituary())
    elif frame.kind is Kind.FAILED:
        inquest.failed(member.rank, msgspec.msgpack.decode(frame.payload, type=Failure))


class _RankTraceback(Exception):  # noqa: N818 - it carries the text of one, to be chained
    """Where a rank failed, as it printed it."""

    def __str__(self) -> str:
        return f"\n\n{self.args[0]}"
