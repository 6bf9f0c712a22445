"""A warning about something that may go on happening: said at once, then at most once a minute."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

__all__ = ["Complaint"]

PERIOD_SECONDS = 60.0


class Complaint:
    """One kind of warning. What is left out of the log is still counted by whoever complains."""

    def __init__(self, logger: logging.Logger, text: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._logger = logger
        self._text = text
        self._clock = clock
        self._silent_until: float | None = None

    def __call__(self, *details: object) -> None:
        """Log the text, with the details filled in, unless it was logged a moment ago."""
        now = self._clock()
        if self._silent_until is None or now >= self._silent_until:
            self._silent_until = now + PERIOD_SECONDS
            self._logger.warning(self._text, *details)
