"""What was sent to a lane, taken for what it holds: the index of a router without events.

An engine keeps what it computed until it needs the room, so a prefix that was sent lately is probably still there. How
much room there is nobody says; memory is bounded in keys, the longest unused go first, and in time. Pure: times are
handed in.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Sequence

from router.choice.memory import Keys, marks

__all__ = ["Routed", "RoutedPrompts"]

MAX_KEYS = 65_536
"""A lane's: with a key for every 64 tokens, prefixes of four million tokens, in about 12 MB."""

MAX_KEYS_OF_ONE = 4_096
KEEP_SECONDS = 600.0


class Routed:
    """One remembered prompt, and the keys that it was the first to bring."""

    def __init__(self, memory: OrderedDict[int, Entry], brought: Sequence[int]) -> None:
        self._memory = memory
        self._brought = brought

    def prefilled(self, *, now: float) -> None:
        """Nothing changes: no event will take over."""

    def forget(self) -> None:
        """The engine did not take it; what only it has brought goes."""
        for key in self._brought:
            entry = self._memory.get(key)
            if entry is not None and entry.uses == 1:
                del self._memory[key]


class Entry:
    """A key's last use, and how often it was used."""

    __slots__ = ("at", "uses")

    def __init__(self) -> None:
        self.at = 0.0
        self.uses = 0


class RoutedPrompts:
    """One lane's `Memory`, of everything that was sent to it lately, within ``max_keys`` and ``keep_seconds``."""

    def __init__(self, *, max_keys: int = MAX_KEYS, keep_seconds: float = KEEP_SECONDS) -> None:
        self._max_keys = max_keys
        self._keep_seconds = keep_seconds
        self._entries: OrderedDict[int, Entry] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: int) -> bool:
        return key in self._entries

    def remember(self, keys: Keys, *, width: int, now: float) -> Routed:
        """See `Memory`. A prefix is used whenever a longer prompt is, so no key ever outlives those before it."""
        brought = []
        for place in reversed(marks(len(keys), width, most=MAX_KEYS_OF_ONE)):
            key = keys[place]
            entry = self._entries.get(key)
            if entry is None:
                entry = self._entries[key] = Entry()
                brought.append(key)
            else:
                self._entries.move_to_end(key)
            entry.at = now
            entry.uses += 1
        while len(self._entries) > self._max_keys:
            self._entries.popitem(last=False)
        return Routed(self._entries, brought)

    def match(self, keys: Keys, *, width: int, now: float, known: int = 0) -> int:
        """See `Memory`."""
        if not self._entries:
            return 0
        places = marks(len(keys), width, most=MAX_KEYS_OF_ONE, beyond=known // width)
        count = bisect_left(places, True, key=lambda place: not self._holds(keys[place], now))
        return (places[count - 1] + 1) * width if count else 0

    def clear(self) -> None:
        """See `Memory`."""
        self._entries.clear()

    def _holds(self, key: int, now: float) -> bool:
        entry = self._entries.get(key)
        return entry is not None and now - entry.at < self._keep_seconds
