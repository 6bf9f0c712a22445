"""A lane's books: tokens promised, tokens found, and the last requests one by one. Pure."""

from __future__ import annotations

from collections import deque

import msgspec

from router.proof.witness import Witness

__all__ = ["LaneTally", "Outcome", "WindowSums"]

WINDOW = 64


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """One finished request, in tokens.

    ``prompt_tokens`` is the engine's count, ``counted_tokens`` the router's own (None: not tokenised). ``reported`` is
    None where the engine did not say. ``width`` is the block width the router hashed at (None: unknown). ``witness`` is
    None where the prompt's ids are unknown; ``at`` is when it finished, in seconds.
    """

    prompt_tokens: int
    counted_tokens: int | None
    predicted: int
    reported: int | None
    width: int | None
    witness: Witness | None = None
    at: float = 0.0

    @property
    def namespaced(self) -> bool:
        """Whether its prompt belongs to an adapter or a salt."""
        return self.witness is not None and self.witness.namespaced

    @property
    def first_key(self) -> int | None:
        """Key of the prompt's first block; None where it fills none or its ids are unknown."""
        return None if self.witness is None else self.witness.first_key

    @property
    def missed(self) -> bool:
        """Whether the engine found something of which the router knew nothing."""
        return bool(self.reported) and not self.predicted

    @property
    def stores_blocks(self) -> bool:
        """Whether the engine must have cached a block that it did not hold before, and so must have said so."""
        if self.width is None:
            return True
        return self.prompt_tokens // self.width > (self.reported or 0) // self.width


class WindowSums(msgspec.Struct, frozen=True, kw_only=True):
    """The last requests of which both sides' counts are known, in tokens. ``difference``: predicted minus reported."""

    requests: int
    prompt: int
    predicted_hit: int
    reported_hit: int
    difference: int


class LaneTally:
    """Sums since the router started, and a window of the last requests. ``window`` holds at most ``WINDOW``."""

    def __init__(self) -> None:
        self.routed = 0
        self.prompt_tokens = 0
        self.predicted = 0
        self.reported = 0
        self.ever_reported = False
        self.window: deque[Outcome] = deque(maxlen=WINDOW)
        self._silent_stores = 0
        self._batches_seen = 0

    def record(self, outcome: Outcome, *, batches: int) -> None:
        """Enter a finished request. ``batches`` is how many event batches the lane has had by now."""
        self.prompt_tokens += outcome.prompt_tokens
        self.predicted += outcome.predicted
        self.reported += outcome.reported or 0
        self.ever_reported = self.ever_reported or outcome.reported is not None
        self.window.append(outcome)
        if batches != self._batches_seen:
            self._batches_seen, self._silent_stores = batches, 0
        elif outcome.stores_blocks:
            self._silent_stores += 1

    def silent_stores(self, batches: int) -> int:
        """Requests since the last of ``batches`` event batches that must have stored blocks.

        Batches that came after the last request has ended break the silence too: events may be late.
        """
        return self._silent_stores if batches == self._batches_seen else 0

    @property
    def window_sums(self) -> WindowSums:
        """Promise and report over the window."""
        told = [outcome for outcome in self.window if self.ever_reported and outcome.counted_tokens is not None]
        predicted = sum(outcome.predicted for outcome in told)
        reported = sum(outcome.reported or 0 for outcome in told)
        return WindowSums(
            requests=len(told),
            prompt=sum(outcome.prompt_tokens for outcome in told),
            predicted_hit=predicted,
            reported_hit=reported,
            difference=predicted - reported,
        )

    def restart(self) -> None:
        """Another process is behind the lane: what was seen of the old one proves nothing. Sums stay."""
        self.window.clear()
        self.ever_reported = False
        self._batches_seen = self._silent_stores = 0
