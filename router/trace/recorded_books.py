"""Each lane's books as they were when a trace was recorded: load, learnt speed, and what had just been sent there.

The recorded requests are booked by the router's own code, at the recorded times. What a rule of choice is shown of a
lane is a `LaneState`; there is one for those that believe events and one for those that believe what was sent.
"""

from __future__ import annotations

import heapq
import itertools
from collections import OrderedDict

from router.choice.dispatch import Dispatch
from router.choice.load import LaneLoad
from router.choice.memory import MARK_TOKENS, Memory
from router.choice.policy import APPROX, memory_of
from router.choice.recent import RecentPrompts
from router.choice.speed import FleetSpeed, ReplicaSpeed
from router.intake.index import LaneHandle
from router.prompt import Prompt
from router.trace.records import FirstToken, Record, Routed, Served
from router.trace.replayer import LaneName, ReplayedLane
from router.trace.requests import MAX_OPEN

__all__ = ["LaneBooks", "LaneState", "RecordedBooks"]


class LaneState:
    """A lane as the chooser wants it, at its own width, or at ``hashed_at`` where a router has one width for all."""

    def __init__(
        self, lane: ReplayedLane, *, load: LaneLoad, speed: ReplicaSpeed, recent: Memory, hashed_at: int | None = None
    ) -> None:
        self.url, self.dp_rank = lane.name
        self.load = load
        self.speed = speed
        self.recent = recent
        self.handle: LaneHandle = lane.handle
        self._lane = lane
        self._hashed_at = hashed_at

    def now(self) -> LaneState:
        """The lane as it is in the index now: another one since its stream was joined anew."""
        self.handle = self._lane.handle
        return self

    @property
    def width(self) -> int | None:
        """Block width in tokens."""
        return self._hashed_at or self._lane.width


class LaneBooks:
    """One lane, as it shows to rules of each kind."""

    def __init__(self, lane: ReplayedLane, speed: ReplicaSpeed) -> None:
        self.lane = lane
        self._load = LaneLoad()
        self._speed = speed
        self._by_events = self._state(RecentPrompts())
        self._by_memory = self._state(memory_of(APPROX))
        self._fixed: dict[int, LaneState] = {}

    @property
    def by_events(self) -> LaneState:
        """As it shows to a rule that believes events."""
        return self._by_events.now()

    @property
    def by_memory(self) -> LaneState:
        """As it shows to a rule that believes what was sent."""
        return self._by_memory.now()

    def hashed_at(self, width: int) -> LaneState:
        """As it shows to a router that hashes every prompt at one width."""
        if width not in self._fixed:
            self._fixed[width] = self._state(RecentPrompts(), hashed_at=width)
        return self._fixed[width].now()

    def _state(self, recent: Memory, *, hashed_at: int | None = None) -> LaneState:
        return LaneState(self.lane, load=self._load, speed=self._speed, recent=recent, hashed_at=hashed_at)


class RecordedBooks:
    """All lanes' books. Tell it of every request's records in order, and of the time."""

    def __init__(self) -> None:
        self._fleet = FleetSpeed()
        self._speeds: dict[str, ReplicaSpeed] = {}
        self._books: dict[LaneName, LaneBooks] = {}
        self._sent: OrderedDict[int, tuple[Routed, Dispatch]] = OrderedDict()
        self._expected: list[tuple[float, int, Dispatch]] = []
        self._order = itertools.count()

    def of(self, lane: ReplayedLane) -> LaneBooks:
        """The books of a lane."""
        books = self._books.get(lane.name)
        if books is None:
            speed = self._speeds.setdefault(lane.name.url, self._fleet.replica())
            books = self._books[lane.name] = LaneBooks(lane, speed)
        return books

    def until(self, now: float) -> None:
        """Answers that come at once show no first token: those that should have one by now are taken to have it."""
        while self._expected and self._expected[0][0] <= now:
            at, _, dispatch = heapq.heappop(self._expected)
            dispatch.prefilled(now=at)

    def book(self, routed: Routed, lane: ReplayedLane, prompt: Prompt | None) -> None:
        """A request was sent to a lane."""
        books, uncached = self.of(lane), routed.prompt_tokens - routed.predicted - routed.pending
        dispatch = Dispatch(
            books.by_events,
            prompt,
            width=lane.width,
            uncached_tokens=max(uncached, 0) * routed.prompts,
            now=routed.at,
        )
        if prompt is not None:
            width = lane.width or MARK_TOKENS
            books.by_memory.recent.remember(prompt.keys(width=width), width=width, now=routed.at)
        if not routed.stream:
            heapq.heappush(self._expected, (routed.at + dispatch.expected(), next(self._order), dispatch))
        self._sent[routed.request] = routed, dispatch
        if len(self._sent) > MAX_OPEN:
            self._sent.popitem(last=False)[1][1].end()

    def feed(self, record: Record) -> None:
        """What became of a request that was booked; other records change nothing."""
        match record:
            case FirstToken() if record.request in self._sent:
                self._sent[record.request][1].first_token(now=record.at)
            case Served() if record.request in self._sent:
                self._end(*self._sent.pop(record.request), record)

    def forget(self) -> None:
        """The recorder was another one from here on: nobody tells how its requests ended."""
        for _, dispatch in self._sent.values():
            dispatch.end()
        self._sent.clear()
        self._expected.clear()

    def _end(self, routed: Routed, dispatch: Dispatch, served: Served) -> None:
        if served.prompt_tokens is not None and dispatch.first_after is not None and routed.prompts == 1:
            dispatch.learn(
                prompt_tokens=served.prompt_tokens,
                cached_tokens=served.reported or 0,
                answer_tokens=served.output_tokens,
                streamed=routed.stream,
                now=served.at,
            )
        dispatch.end()
