"""One lane's stream of numbered batches: which to apply, which to drop, what to ask for, when to start over.

All decisions and nothing else: frames and times go in, actions come out, in the order in which they must be carried
out. No sockets, no clock, no index.

The rules, each with its reason:

* A batch is applied once, by number. Live and replayed batches overlap always, since a replay runs to the newest one.
* A hole in the numbers asks for a replay, and live batches wait for it, because order decides what an engine holds. The
  replay is asked to begin with the last batch applied, and that batch must come back unchanged: only so is a restart
  noticed that hides behind higher numbers.
* A number that goes back, or a batch that differs from what its number stood for, is another engine behind the same
  endpoint: everything known is void.
* A batch that cannot be had is lost: engines burn numbers, logs end. Then what is held may be wrong, and the lane says
  so until a batch with AllBlocksCleared, or a replay from the start, makes everything known again. Nothing is asked
  twice for one hole.
* On joining, what went before is no loss, only unknown: ``known_from``.
"""

from __future__ import annotations

import enum

import msgspec

from contract.events import AllBlocksCleared, EventBatch, EventDecodeError, decode_batch
from contract.framing import Frame
from router.intake.held import HeldFrames
from router.intake.recent import RecentBatches
from router.intake.stream_report import StreamLimits, StreamState, StreamStatus

__all__ = ["Action", "Apply", "AskReplay", "Clear", "LaneStream", "StreamLimits", "StreamState", "StreamStatus"]


class Clear(msgspec.Struct, frozen=True):
    """Forget everything about the lane: another engine stands behind it."""


class Apply(msgspec.Struct, frozen=True):
    """Apply a batch to the lane."""

    batch: EventBatch


class AskReplay(msgspec.Struct, frozen=True):
    """Ask for every batch from ``start`` on; an earlier request that still runs is void."""

    start: int


Action = Clear | Apply | AskReplay


class _Purpose(enum.Enum):
    """Why a replay was asked for."""

    HISTORY = enum.auto()  # nothing is held: everything, from the start
    VERIFY = enum.auto()  # fill a hole, or look after a reconnect: from the last batch applied, that one included
    REBUILD = enum.auto()  # the engine has nothing from there on: everything, from the start
    RECOVER = enum.auto()  # batches were lost: everything, if it is still to be had from the start


class LaneStream:
    """Tracks one lane. Call ``live`` and ``replayed`` with frames as they come, and carry out what comes back.

    After an ``AskReplay``, call ``replayed`` for each answer and then ``replay_ended`` or ``replay_failed``; before
    another attempt at the same replay, ``replay_again``.
    """

    def __init__(self, *, can_replay: bool, limits: StreamLimits | None = None) -> None:
        limits = limits or StreamLimits()
        self._can_replay = can_replay
        self._recent = RecentBatches(limits.remembered)
        self._held = HeldFrames(most=limits.held_batches, most_bytes=limits.held_bytes)
        self._joined = False
        self._last = -1
        self._last_live = -1
        self._snapshot = -1
        self._known_from: int | None = None
        self._reason: str | None = None
        self._purpose: _Purpose | None = None
        self._answered = False
        self._other_engine = False
        self._check_later = False
        self._counts = dict.fromkeys(_COUNTED, 0)
        self._last_event_time: float | None = None

    @property
    def status(self) -> StreamStatus:
        """The stream now."""
        return StreamStatus(
            state=self._state(),
            reason=self._reason,
            last_seq=self._last,
            known_from=self._known_from,
            held=len(self._held),
            held_dropped=self._held.dropped,
            last_event_time=self._last_event_time,
            **self._counts,
        )

    @property
    def trusted(self) -> bool:
        """Whether nothing is known to be wrong with what is held."""
        return self._reason is None

    @property
    def batches(self) -> int:
        """Batches applied."""
        return self._counts["batches"]

    @property
    def last_seq(self) -> int:
        """The last batch taken into account, -1 before the first."""
        return self._last

    # The subscription

    def connected(self) -> list[Action]:
        """The subscription stands, for the first time or again: learn what went before, or verify what is held."""
        self._joined = True
        if self._purpose is not None:
            # What waits may come from before the connection broke, so from another engine. Replays bring it again.
            self._held.drop()
            self._check_later = True
            return []
        return self._ask(_Purpose.VERIFY) if self._can_replay else []

    def check(self) -> list[Action]:
        """Ask whether the last batch applied is still the engine's; for everything, where trust is lost."""
        if not self._can_replay or self._purpose is not None:
            return []
        return self._ask(_Purpose.VERIFY if self.trusted else _Purpose.RECOVER)

    def live(self, frame: Frame, *, now: float) -> list[Action]:
        """A batch from the subscription, which arrived at ``now``."""
        self._joined = True
        self._last_event_time = now
        if self._purpose in (None, _Purpose.RECOVER):
            return self._take(frame, may_ask=self._can_replay)
        self._held.add(frame)
        return []

    def _take(self, frame: Frame, *, may_ask: bool) -> list[Action]:
        before, self._last_live = self._last_live, frame.seq
        if frame.seq == self._last + 1:
            return self._apply(frame)
        if frame.seq > self._last:
            return self._gap(frame, may_ask=may_ask)
        if self._seen(frame, before):
            self._counts["duplicates"] += 1
            return []
        return self._start_over() + self._first_of_restarted(frame, may_ask=may_ask)

    def _first_of_restarted(self, frame: Frame, *, may_ask: bool) -> list[Action]:
        """The first batch seen of a restarted engine. A replay shows that it is no straggler of the engine before."""
        if frame.seq:
            return self._gap(frame, may_ask=may_ask)
        return self._apply(frame) + (self._ask(_Purpose.RECOVER) if may_ask else [])

    def _seen(self, frame: Frame, last_live: int) -> bool:
        """Whether a number that is not new stands for the batch it stood for: here, or inside a snapshot."""
        same = self._recent.same(frame.seq, frame.payload)
        return last_live < frame.seq <= self._snapshot and frame.seq > 0 if same is None else same

    def _gap(self, frame: Frame, *, may_ask: bool) -> list[Action]:
        """Batches are missing before this one. Before the first one ever seen that is no hole, only the past."""
        self._counts["gaps"] += self._known_from is not None
        if not may_ask:
            return self._apply(frame)
        self._held.add(frame)
        return self._ask(_Purpose.VERIFY)

    # Replay

    @property
    def _replay_start(self) -> int:
        """Where to begin. The last batch applied is asked for again, to be compared."""
        return 0 if self._purpose in (_Purpose.REBUILD, _Purpose.RECOVER) else max(self._last, 0)

    def _ask(self, purpose: _Purpose) -> list[Action]:
        self._purpose = _Purpose.HISTORY if self._last < 0 else purpose
        self._answered = False
        self._counts["replays"] += 1
        self._held.mark()
        return [AskReplay(self._replay_start)]

    def replay_again(self) -> AskReplay | None:
        """What to ask in another attempt at the replay that is wanted; answers got so far are kept."""
        if self._purpose is None:
            return None
        if self._answered:
            self._purpose, self._answered = _Purpose.VERIFY, False
        return AskReplay(self._replay_start)

    def replayed(self, frame: Frame) -> list[Action]:
        """A batch from the replay endpoint."""
        if self._purpose is None:
            return []
        first, self._answered = not self._answered, True
        if first and self._purpose in (_Purpose.REBUILD, _Purpose.RECOVER):
            return self._first_of_all(frame)
        if frame.seq > self._last:
            return self._apply(frame, replayed=True)
        same = self._recent.same(frame.seq, frame.payload)
        if same is None and frame.seq == self._last:
            self._recent.remember(frame.seq, frame.payload)
        return self._contradicted() if same is False else []

    def _first_of_all(self, frame: Frame) -> list[Action]:
        """The first answer to a replay of everything: start over from it, if it is everything."""
        rebuild, self._purpose = self._purpose is _Purpose.REBUILD, _Purpose.VERIFY
        if rebuild or frame.seq == 0 or _begins_cleared(_decode(frame)):
            other_engine = rebuild or self._recent.same(frame.seq, frame.payload) is False
            self._other_engine = other_engine
            return self._start_over(restarted=other_engine) + self._apply(frame, replayed=True)
        return self.replayed(frame)

    def _contradicted(self) -> list[Action]:
        """A number stands for another batch than it did: this is another engine, of which nothing is known yet."""
        self._other_engine = True
        return self._start_over() + self._ask(_Purpose.HISTORY)

    def replay_ended(self) -> list[Action]:
        """The replay endpoint has sent all it has."""
        if self._purpose is None:
            return []
        if self._answered:
            return self._resume()
        if self._purpose is _Purpose.VERIFY:
            # The engine does not know the batch applied last. Before that costs everything: does it know any at all?
            return self._ask(_Purpose.REBUILD)
        return self._nothing_known() + self._resume()

    def _nothing_known(self) -> list[Action]:
        """A replay of everything brought nothing: a new engine, or a log that is of no use."""
        if self._held.covered:
            self._distrust("the replay endpoint has no batches, but live ones arrive")
        elif self._purpose is _Purpose.HISTORY:
            self._known_from, self._reason = 0, None
        elif self._purpose is _Purpose.REBUILD:
            return self._start_over()
        return []

    def replay_failed(self, why: str) -> list[Action]:
        """The replay endpoint did not answer, for good: live batches go on without it."""
        if self._purpose is None:
            return []
        self._counts["replay_failures"] += 1
        self._purpose, self._other_engine = None, False
        covered, later = self._held.take()
        actions = [action for frame in covered + later for action in self._take(frame, may_ask=False)]
        self._distrust(why)
        return actions + self._look_again()

    def _resume(self) -> list[Action]:
        """Back to live batches: those that waited first."""
        covered, later = self._held.take()
        stale, self._other_engine, self._purpose = self._other_engine, False, None
        actions = [action for frame in covered for action in self._settle(frame, stale=stale)]
        for frame in later:
            actions += self._hold_or_take(frame)
        return actions + self._look_again()

    def _look_again(self) -> list[Action]:
        """After a replay during which the connection came back: it may have been another engine's."""
        if not self._check_later or self._purpose is not None:
            return []
        self._check_later = False
        return self._ask(_Purpose.VERIFY)

    def _hold_or_take(self, frame: Frame) -> list[Action]:
        if self._purpose is None:
            return self._take(frame, may_ask=True)
        self._held.add(frame)
        return []

    def _settle(self, frame: Frame, *, stale: bool) -> list[Action]:
        """A frame that waited for a replay which should have contained it: nothing is asked again on its account.

        ``stale``: the replay came from another engine than the lane had before, whose last frames these may be.
        """
        self._last_live = frame.seq
        if frame.seq <= self._last or (stale and frame.seq > self._last + 1):
            self._counts["duplicates"] += 1
            return []
        return self._apply(frame)

    # State

    def _apply(self, frame: Frame, *, replayed: bool = False) -> list[Action]:
        """Take a batch into account that comes after all others; what it leaves out is lost, or was never known."""
        batch = _decode(frame)
        missing = frame.seq - self._last - 1
        clears = batch is not None and AllBlocksCleared in map(type, batch.events)
        cleared = clears and _begins_cleared(batch)
        if missing and replayed and cleared:
            self._snapshot = frame.seq  # its number was another payload's before, so it is no evidence
        else:
            self._recent.remember(frame.seq, frame.payload)
        if missing or self._known_from is None:
            self._leave_out(0 if cleared else missing, before=frame.seq)
        self._last = frame.seq
        if batch is None:
            self._counts["rejected_batches"] += 1
            return []
        self._counts["batches"] += 1
        self._counts["replayed"] += replayed
        if clears:
            self._known_from, self._reason = 0, None
        return [Apply(batch)]

    def _leave_out(self, missing: int, *, before: int) -> None:
        if self._known_from is None:
            self._known_from = before if missing else 0
        elif missing:
            self._counts["lost"] += missing
            self._distrust(f"lost before batch {before}: {missing}")

    def _start_over(self, *, restarted: bool = True) -> list[Action]:
        self._counts["restarts"] += restarted
        self._last, self._snapshot, self._known_from, self._reason = -1, -1, 0, None
        self._recent.clear()
        return [Clear()]

    def _distrust(self, why: str) -> None:
        self._reason = why

    def _state(self) -> StreamState:
        if self._purpose is not None:
            return StreamState.JOINING if self._known_from is None else StreamState.REPLAYING
        if not self.trusted:
            return StreamState.UNTRUSTED
        return StreamState.LIVE if self._joined else StreamState.CONNECTING


_COUNTED = (
    "batches",
    "replayed",
    "duplicates",
    "gaps",
    "lost",
    "restarts",
    "replays",
    "replay_failures",
    "rejected_batches",
)


def _decode(frame: Frame) -> EventBatch | None:
    try:
        return decode_batch(frame.payload)
    except EventDecodeError:
        return None


def _begins_cleared(batch: EventBatch | None) -> bool:
    """Whether a batch says all there is: nothing before it matters any more."""
    return batch is not None and bool(batch.events) and isinstance(batch.events[0], AllBlocksCleared)
