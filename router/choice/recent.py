"""What has just been sent to a lane and no event confirms yet.

Siblings of one new prefix arrive within milliseconds, long before the engine has computed and announced it. A router
that knows only the announced blocks scatters them. So the keys of a prompt are remembered from the moment it is sent
until shortly after its first token, when the events are there, or until its time is up.

It is a memory for the choice only: what is remembered here is never counted as a predicted hit. Bounded in prompts and
in keys. Pure: times are handed in.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from router.choice.memory import Keys, marks

__all__ = ["RecentPrompts", "Sent"]

MAX_PROMPTS = 256
MAX_KEYS = 32_768
"""A lane's, of all its prompts: 6 MB."""

MAX_KEYS_OF_ONE = 2_048
"""131,072 tokens where blocks are narrow."""

PENDING_SECONDS = 30.0
CONFIRM_SECONDS = 1.0


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
    """One lane's `Memory`, of the requests under way."""

    def __init__(self) -> None:
        self._by_key: dict[int, Sent] = {}
        self._order: deque[Sent] = deque()
        self._keys = 0

    def __len__(self) -> int:
        return len(self._order)

    def __contains__(self, key: int) -> bool:
        return key in self._by_key

    def remember(self, keys: Keys, *, width: int, now: float) -> Sent:
        """See `Memory`."""
        self._drop_old(now)
        places = marks(len(keys), width, most=MAX_KEYS_OF_ONE)
        sent = Sent(keys[places.start : places.stop : places.step], now + PENDING_SECONDS)
        self._order.append(sent)
        self._keys += len(sent.keys)
        self._by_key.update(dict.fromkeys(sent.keys, sent))
        return sent

    def match(self, keys: Keys, *, width: int, now: float, known: int = 0) -> int:
        """See `Memory`."""
        if not self._by_key:
            return 0
        places = marks(len(keys), width, most=MAX_KEYS_OF_ONE, beyond=known // width)
        if not places:
            return 0
        found = 0
        for key in keys[places.start : places.stop : places.step]:
            sent = self._by_key.get(key)
            if sent is None or sent.until <= now:
                break
            found += 1
        return (places[found - 1] + 1) * width if found else 0

    def clear(self) -> None:
        """See `Memory`."""
        self._by_key.clear()
        self._order.clear()
        self._keys = 0

    def _drop_old(self, now: float) -> None:
        """Make room for one more prompt."""
        while self._order and (self._full or self._order[0].until <= now):
            old = self._order.popleft()
            self._keys -= len(old.keys)
            if self._order:
                self._forget(old)
            else:
                self._by_key.clear()  # there was nothing else, as mostly in a large fleet

    def _forget(self, old: Sent) -> None:
        for key in old.keys:
            if self._by_key.get(key) is old:
                del self._by_key[key]

    @property
    def _full(self) -> bool:
        return len(self._order) >= MAX_PROMPTS or self._keys > MAX_KEYS - MAX_KEYS_OF_ONE
