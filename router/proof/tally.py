"""A lane's books: tokens promised, tokens found, and the last requests one by one. Pure."""

from __future__ import annotations

from collections import deque

import msgspec

__all__ = ["LaneTally", "Outcome"]

WINDOW = 64


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """One finished request, in tokens.

    ``prompt_tokens`` is the engine's count, ``counted_tokens`` the router's own (None: not tokenised). ``reported`` is
    None where the engine did not say. ``width`` is the block width the router hashed at (None: unknown).
    """

    prompt_tokens: int
    counted_tokens: int | None
    predicted: int
    reported: int | None
    width: int | None

    @property
    def stores_blocks(self) -> bool:
        """Whether the engine must have cached a block that it did not hold before, and so must have said so."""
        if self.width is None:
            return True
        return self.prompt_tokens // self.width > (self.reported or 0) // self.width


class LaneTally:
    """Sums since the router started, and a window of the last requests. ``window`` holds at most ``WINDOW``."""

    def __init__(self) -> None:
        self.routed = 0
        self.prompt_tokens = 0
        self.predicted = 0
        self.reported = 0
        self.ever_reported = False
        self.window: deque[Outcome] = deque(maxlen=WINDOW)
        self.silent_stores = 0
        self._batches_seen = 0

    def record(self, outcome: Outcome, *, batches: int) -> None:
        """Enter a finished request. ``batches`` is how many event batches the lane has had by now."""
        self.prompt_tokens += outcome.prompt_tokens
        self.predicted += outcome.predicted
        self.reported += outcome.reported or 0
        self.ever_reported = self.ever_reported or outcome.reported is not None
        self.window.append(outcome)
        if batches != self._batches_seen:
            self._batches_seen, self.silent_stores = batches, 0
        elif outcome.stores_blocks:
            self.silent_stores += 1

    def restart(self) -> None:
        """Another process is behind the lane: what was seen of the old one proves nothing. Sums stay."""
        self.window.clear()
        self.ever_reported = False
        self._batches_seen = self.silent_stores = 0
