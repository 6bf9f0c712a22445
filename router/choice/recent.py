"""What has just been sent to a lane and no event confirms yet.

Siblings of one new prefix arrive within milliseconds, long before the engine has computed and announced it. A router
that knows only the announced blocks scatters them. So the keys of a prompt are remembered from the moment it is sent
until shortly after its first token, when the events are there, or until its time is up.

It is a memory for the choice only: what is remembered here is never counted as a predicted hit. Bounded in prompts and
in keys per prompt. Pure: times are handed in.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Protocol

__all__ = ["RecentPrompts", "Sent"]

MAX_PROMPTS = 256
MAX_KEYS = 128
MARK_TOKENS = 64
PENDING_SECONDS = 30.0
CONFIRM_SECONDS = 1.0


class Keys(Protocol):
    """Block keys in order, made when they are looked at."""

    def __len__(self) -> int: ...

    def __getitem__(self, block: int, /) -> int: ...


class Sent:
    """One remembered prompt; it counts until ``until``."""

    __slots__ = ("keys", "until")

    def __init__(self, keys: Sequence[int], until: float) -> None:
        self.keys = keys
        self.until = until

    def prefilled(self, *, now: float) -> None:
        """Its first token is there: events will say the rest."""
        self.until = min(self.until, now + CONFIRM_SECONDS)

    def forget(self) -> None:
        """The engine did not take it: nothing of it will be cached."""
        self.until = 0.0


class RecentPrompts:
    """One lane's memory. Keys are remembered every ``MARK_TOKENS`` tokens or every block, whichever is wider."""

    def __init__(self) -> None:
        self._by_key: dict[int, Sent] = {}
        self._order: deque[Sent] = deque()

    def __len__(self) -> int:
        return len(self._order)

    def remember(self, keys: Keys, *, width: int, now: float) -> Sent:
        """A prompt with these block keys was sent now."""
        self._drop_old(now)
        sent = Sent([keys[place] for place in _marks(len(keys), width)], now + PENDING_SECONDS)
        self._order.append(sent)
        self._by_key.update(dict.fromkeys(sent.keys, sent))
        return sent

    def match(self, keys: Keys, *, width: int, now: float) -> int:
        """Leading tokens of a prompt with these keys that a remembered prompt shares."""
        if not self._by_key:
            return 0
        matched = 0
        for place in _marks(len(keys), width):
            sent = self._by_key.get(keys[place])
            if sent is None or sent.until <= now:
                break
            matched = place + 1
        return matched * width

    def clear(self) -> None:
        """The engine behind the lane is another one now."""
        self._by_key.clear()
        self._order.clear()

    def _drop_old(self, now: float) -> None:
        while self._order and (len(self._order) >= MAX_PROMPTS or self._order[0].until <= now):
            old = self._order.popleft()
            for key in old.keys:
                if self._by_key.get(key) is old:
                    del self._by_key[key]


def mark_step(width: int) -> int:
    """Blocks from one remembered key to the next."""
    return max(1, MARK_TOKENS // width)


def _marks(blocks: int, width: int) -> range:
    """Which blocks' keys are remembered, of a prompt of so many."""
    step = mark_step(width)
    return range(step - 1, min(blocks, step * MAX_KEYS), step)
