"""Finding stop texts in an answer that arrives in pieces. Pure."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["StopText"]


class StopText:
    """Lets text through until a stop text appears, holding back an end that may turn into one."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = stops
        self._held = ""
        self.matched: str | None = None

    def feed(self, text: str) -> str:
        """What of the answer so far is sure to be sent; once ``matched`` is set, nothing more ever is."""
        if not self._stops:
            return text
        text = self._held + text
        found = [(text.find(stop), stop) for stop in self._stops if stop in text]
        if found:
            cut, self.matched = min(found)
            self._held = ""
            return text[:cut]
        keep = max(_overlap(text, stop) for stop in self._stops)
        sure, self._held = text[: len(text) - keep], text[len(text) - keep :]
        return sure

    def finish(self) -> str:
        """What was held back and turned out to be no stop text."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of ``text`` that begins ``stop``."""
    sizes = range(min(len(text), len(stop) - 1), 0, -1)
    return next((size for size in sizes if text.endswith(stop[:size])), 0)
