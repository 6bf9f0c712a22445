"""What waits and runs on a lane: prompt tokens without a first token yet, answers being decoded, by two accounts.

The router's own books change when a request is sent, gets its first token and ends, and are exact about what went
through here. An engine's own account, where it is asked for, also covers what others send it; of that, only what the
books cannot explain is counted, and only while it is fresh. Pure: times are handed in.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import msgspec

__all__ = ["Backlog", "Booking", "BusyShare", "EngineLoad", "LaneLoad", "Surplus"]

BUSY_SECONDS = 60.0
MIN_BUSY_WINDOW = 5.0
FRESH_SECONDS = 2.0
"""An engine's account older than this says nothing any more."""

SHARED_SECONDS = 60.0
"""A lane where nobody else's request was seen for so long is taken for ours alone."""

MOST_PROGRESS = 0.9
"""Of a prompt without a first token, at least a tenth is still to be computed, however long it has been running."""

MEAN_WEIGHT = 0.1


class EngineLoad(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine says of one lane. ``cache_used``: share of its KV cache that running requests hold, in [0, 1].

    ``waiting_tokens`` are uncached prompt tokens without a first token; None: it does not say.
    """

    running: int
    waiting: int
    waiting_tokens: int | None = None
    cache_used: float | None = None


class Backlog(msgspec.Struct, frozen=True):
    """Uncached prompt tokens that waiting requests have, and those left of the request that is being computed."""

    waiting: float
    running: float

    @property
    def tokens(self) -> float:
        """Both."""
        return self.waiting + self.running


class Surplus(msgspec.Struct, frozen=True):
    """What an engine has that did not come through this router, and how full its cache is."""

    tokens: float = 0.0
    decoding: int = 0
    cache_used: float = 0.0


_NO_SURPLUS = Surplus()


class LaneLoad:
    """One lane's books. ``queued_tokens`` are uncached prompt tokens without a first token yet."""

    def __init__(self) -> None:
        self.queued_tokens = 0
        self.decoding = 0
        self._line: dict[Booking, None] = {}
        self._freed_at = 0.0
        self._mean_tokens = 0.0
        self._surplus = _NO_SURPLUS
        self._reported_at = self._strangers_at = -math.inf
        self._listeners: list[Callable[[LaneLoad], object]] = []

    def tell(self, listener: Callable[[LaneLoad], object]) -> None:
        """Call ``listener`` whenever the books have changed."""
        self._listeners.append(listener)

    def tell_no_more(self, listener: Callable[[LaneLoad], object]) -> None:
        """Undo one ``tell``."""
        self._listeners.remove(listener)

    def _changed(self) -> None:
        for listener in self._listeners:
            listener(self)

    @property
    def prefilling(self) -> int:
        """Requests without a first token."""
        return len(self._line)

    @property
    def in_flight(self) -> int:
        """Requests sent and not ended."""
        return len(self._line) + self.decoding

    def book(self, tokens: int, *, now: float) -> Booking:
        """Count a request of ``tokens`` uncached prompt tokens until the booking is ended."""
        weight = MEAN_WEIGHT if self._mean_tokens else 1.0
        self._mean_tokens += weight * (tokens - self._mean_tokens)
        return Booking(self, tokens, now=now)

    def backlog(self, *, pace: float, now: float) -> Backlog:
        """What is still to be computed at ``pace`` seconds a token; the request that came first is being computed."""
        head = next(iter(self._line), None)
        if head is None:
            return Backlog(0.0, 0.0)
        elapsed = max(now - max(head.sent_at, self._freed_at), 0.0)
        done = min(elapsed / pace, MOST_PROGRESS * head.tokens)
        return Backlog(self.queued_tokens - head.tokens, head.tokens - done)

    @property
    def tokens_behind(self) -> int:
        """Uncached prompt tokens of those that wait behind the request that came first."""
        head = next(iter(self._line), None)
        return 0 if head is None else self.queued_tokens - head.tokens

    def is_shared(self, now: float) -> bool:
        """Whether the engine has lately told of requests that did not come through here."""
        return now - self._strangers_at <= SHARED_SECONDS

    def waiting_tokens(self, now: float) -> float:
        """Uncached prompt tokens without a first token yet, whoever sent them."""
        if self._surplus is _NO_SURPLUS:
            return self.queued_tokens
        return self.queued_tokens + self.surplus(now).tokens

    def report(self, load: EngineLoad, *, now: float) -> None:
        """An engine's account, which arrived now."""
        strangers = max(load.running + load.waiting - self.in_flight, 0)
        waiting = min(strangers, max(load.waiting - self.prefilling, 0))
        if load.waiting_tokens is None:
            tokens = waiting * self._mean_tokens
        else:
            tokens = float(max(load.waiting_tokens - self.queued_tokens, 0))
        self._surplus = Surplus(tokens, strangers - waiting, load.cache_used or 0.0)
        self._reported_at = now
        if strangers:
            self._strangers_at = now
        self._changed()

    def surplus(self, now: float) -> Surplus:
        """What the last account said beyond the books; nothing when it is old or there is none."""
        return self._surplus if now - self._reported_at <= FRESH_SECONDS else _NO_SURPLUS


class Booking:
    """One request's entry in its lane's books."""

    def __init__(self, load: LaneLoad, tokens: int, *, now: float) -> None:
        self.tokens = tokens
        self.sent_at = now
        self._load = load
        load.queued_tokens += tokens
        load._line[self] = None
        load._changed()

    def prefilled(self, *, now: float) -> None:
        """The first token is there: no prompt tokens wait any more, a decode runs. Further calls do nothing."""
        if self._leave_line():
            self._load._freed_at = now
            self._load.decoding += 1
            self._load._changed()

    def end(self) -> None:
        """Take the request off the books; called once, whatever ended it."""
        if not self._leave_line():
            self._load.decoding -= 1
        self._load._changed()

    def _leave_line(self) -> bool:
        """Whether it was still waiting for its first token."""
        if self not in self._load._line:
            return False
        del self._load._line[self]
        self._load.queued_tokens -= self.tokens
        return True


class BusyShare:
    """Share of the fleet's prefill time that is taken, averaged over about a minute, and how many requests take it.

    Only work that came through here is known. Times are handed in.
    """

    def __init__(self, *, now: float) -> None:
        self._since = self._at = now
        self._work = self._requests = 0.0

    def add(self, seconds: float, *, now: float) -> None:
        """Somebody was given that much prefill work by a request."""
        kept = math.exp(-(now - self._at) / BUSY_SECONDS)
        self._work = self._work * kept + seconds
        self._requests = self._requests * kept + 1.0
        self._at = now

    def share(self, *, lanes: int, now: float) -> float:
        """Work given per second and lane; may pass 1 when more is given than can be done."""
        return self._work * self._per_second(now) / max(lanes, 1)

    def rate(self, *, lanes: int, now: float) -> float:
        """Requests per second and lane."""
        return self._requests * self._per_second(now) / max(lanes, 1)

    def _per_second(self, now: float) -> float:
        window = BUSY_SECONDS * -math.expm1(-max(now - self._since, MIN_BUSY_WINDOW) / BUSY_SECONDS)
        return math.exp(-(now - self._at) / BUSY_SECONDS) / window
