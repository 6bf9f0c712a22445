"""A stream's server-sent events on their way: finds the engine's report, takes out what nobody asked for. Pure.

Chunks may be cut anywhere, inside a character or a line end. With nothing to take out, every chunk leaves at once,
exactly as it came; otherwise an event leaves when it is complete. Only events with token counts are parsed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from router.proof.report import Report, is_bare_usage, read_report

__all__ = ["EventTap"]

MAX_EVENT_BYTES = 1024 * 1024
_MARK = b'"prompt_tokens"'
_GAP = re.compile(rb"\r\n\r\n|\n\n|\r\r")
_LINE = re.compile(rb"\r\n|\n|\r")


class EventTap:
    """One answer's stream. ``strip_usage``: drop the event of token counts that only the router asked for."""

    def __init__(self, *, strip_usage: bool) -> None:
        self._strip = strip_usage
        self._rest = b""
        self._counts = b""

    @property
    def broken_off(self) -> bool:
        """Whether the client has been given the beginning of an event without its end."""
        return bool(self._rest) and not self._strip

    def feed(self, chunk: bytes) -> bytes:
        """Take a chunk of the engine's; what to send on (may be empty)."""
        if not self._rest and chunk.endswith(b"\n\n"):  # whole events, as engines mostly write them
            return self._look_at(chunk) if _MARK in chunk else chunk
        data = self._rest + chunk
        end = _last_gap(data)
        whole, self._rest = data[:end], data[end:]
        kept = self._look_at(whole) if _MARK in whole else whole
        if not self._strip:
            self._rest = self._rest[-MAX_EVENT_BYTES:]
            return chunk
        if len(self._rest) > MAX_EVENT_BYTES:  # no event of token counts is that long: let it pass
            kept, self._rest = kept + self._rest, b""
        return kept

    def finish(self) -> bytes:
        """The stream has ended: what was held back of an event that never became complete."""
        held = self._rest if self._strip else b""
        if _MARK in self._rest:
            self._counts = self._rest
        self._rest = b""
        return held

    @property
    def report(self) -> Report | None:
        """The last report in the stream so far."""
        return read_report(_data_of(self._counts)) if self._counts else None

    def _look_at(self, events: bytes) -> bytes:
        """Remember the last event with token counts; ``events`` without those to be dropped."""
        kept, done = b"", 0
        for start, end in _marked(events):
            self._counts = events[start:end]
            if self._strip and is_bare_usage(_data_of(self._counts)):
                kept, done = kept + events[done:start], end
        return kept + events[done:]


def _last_gap(data: bytes) -> int:
    """Where the last complete event ends; 0 where none does."""
    end = data.rfind(b"\n\n") + 2
    if b"\r" not in data:
        return end if end > 1 else 0
    ends = [match.end() for match in _GAP.finditer(data)]
    return ends[-1] if ends else 0


def _marked(events: bytes) -> Iterator[tuple[int, int]]:
    """Where the events with token counts begin and end, among complete ones."""
    found = events.find(_MARK)
    while found >= 0:
        gap = _GAP.search(events, found)
        end = len(events) if gap is None else gap.end()
        yield _last_gap(events[:found]), end
        found = events.find(_MARK, end)


def _data_of(event: bytes) -> bytes:
    """The ``data`` field of an event: its lines, joined by newlines."""
    lines = [line.removeprefix(b"data:") for line in _LINE.split(event) if line.startswith(b"data:")]
    return b"\n".join(line.removeprefix(b" ") for line in lines)
