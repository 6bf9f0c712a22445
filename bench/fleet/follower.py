"""A router's side of one lane: what its real stream tracking orders, done to its real index, on the virtual clock.

Stands where the subscriber stands in a router, with a feed in the place of sockets: a replay is asked for over the same
way as events come, so it takes two lags, and an engine that is away does not answer. Lost trust is tried to win back in
the subscriber's times, but not for ever, since a run must end.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from bench.fleet.clock import VirtualClock
from bench.fleet.feed import Feed
from contract.framing import Frame
from router.intake.index import BlockIndex, LaneHandle
from router.intake.stream import Action, Apply, AskReplay, Clear, LaneStream
from router.intake.stream_report import SubscriberLimits

__all__ = ["Follower"]

_LIMITS = SubscriberLimits()


class Follower:
    """Keeps one lane of an index equal to what an engine publishes."""

    def __init__(self, clock: VirtualClock, feed: Feed, *, index: BlockIndex, handle: LaneHandle, lag: float) -> None:
        self.stream = LaneStream(can_replay=True, limits=_LIMITS.stream)
        self._clock = clock
        self._feed = feed
        self._index = index
        self._handle = handle
        self._lag = lag
        self._wanted: AskReplay | None = None
        self._pause = _LIMITS.recover
        self._recovering = False

    def connected(self) -> None:
        """The engine is there, for the first time or again."""
        self._perform(self.stream.connected())

    def check(self) -> None:
        """Look whether the engine's last batch is known here."""
        self._perform(self.stream.check())

    def live(self, frame: Frame) -> None:
        """A batch arrives."""
        self._perform(self.stream.live(frame, now=self._clock.now))

    def _perform(self, actions: Sequence[Action]) -> None:
        for action in actions:
            match action:
                case Apply(batch):
                    self._index.apply(self._handle, batch)
                case Clear():
                    self._index.clear(self._handle)
                case AskReplay():
                    self._wanted = action
                    self._clock.after(self._lag, partial(self._asked, action))
        if self.stream.trusted:
            self._pause = _LIMITS.recover
        elif not self._recovering and self._pause < _LIMITS.recover_most:
            self._recovering = True
            self._clock.after(self._pause, self._recover)
            self._pause *= 2

    def _asked(self, wanted: AskReplay) -> None:
        """The request has reached the engine's end."""
        if wanted is not self._wanted:
            return
        answer = partial(self._answered, wanted, self._feed.replay(wanted.start)) if self._feed.up else self._unanswered
        self._clock.after(self._lag, answer)

    def _answered(self, wanted: AskReplay, frames: Sequence[Frame]) -> None:
        for frame in frames:
            if wanted is self._wanted:
                self._perform(self.stream.replayed(frame))
        if wanted is self._wanted:
            self._wanted = None
            self._perform(self.stream.replay_ended())

    def _unanswered(self) -> None:
        self._wanted = None
        self._perform(self.stream.replay_failed("the engine is away"))

    def _recover(self) -> None:
        self._recovering = False
        if not self.stream.trusted:
            self.check()
