"""An event loop whose clock moves only when nothing else can happen, and then at once to the next timer.

What takes seconds by the loop's clock takes none, and takes exactly as long on a busy machine as on an idle one. For
servers and clients that all live in the one loop: what comes from elsewhere may come late by this clock.
"""

from __future__ import annotations

import asyncio
import selectors

__all__ = ["SkippingLoop"]

GRACE_SECONDS = 0.02
"""Real time that bytes on their way through the kernel get before the clock is moved past them."""


class _Skipper(selectors.DefaultSelector):
    """Moves ``now`` on instead of waiting."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or timeout <= 0:
            return super().select(timeout)
        events = super().select(GRACE_SECONDS)
        if not events:
            self.now += timeout
        return events


class SkippingLoop(asyncio.SelectorEventLoop):
    """Its ``time`` starts at 0."""

    def __init__(self) -> None:
        self._skipper = _Skipper()
        super().__init__(self._skipper)

    def time(self) -> float:
        return self._skipper.now
