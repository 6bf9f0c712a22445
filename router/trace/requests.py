"""Requests of a trace, each put together from what was recorded when it was routed and when it had been served."""

from __future__ import annotations

from collections import OrderedDict

import msgspec

from router.trace.records import Began, Record, Routed, Served

__all__ = ["MAX_OPEN", "OpenRequests", "TracedRequest"]

MAX_OPEN = 65_536
"""Attempts that may be open at once; a router takes fewer. Those of one that was killed never end."""


class TracedRequest(msgspec.Struct, frozen=True):
    """One attempt at a request. ``served`` is None where its end was never recorded."""

    routed: Routed
    served: Served | None

    @property
    def reported(self) -> int | None:
        """Prompt tokens that the engine had cached, as it says; not of a batch, whose report is a sum over prompts."""
        return None if self.served is None or self.routed.prompts > 1 else self.served.reported


class OpenRequests:
    """Fed all records in order, hands a request out when it has ended, or when nobody can end it any more."""

    def __init__(self) -> None:
        self._open: OrderedDict[int, Routed] = OrderedDict()

    def feed(self, record: Record) -> list[TracedRequest]:
        """The requests that are complete with this record."""
        match record:
            case Began():
                return self.rest()
            case Routed():
                self._open[record.request] = record
                if len(self._open) > MAX_OPEN:
                    return [TracedRequest(self._open.popitem(last=False)[1], None)]
            case Served():
                routed = self._open.pop(record.request, None)
                return [] if routed is None else [TracedRequest(routed, record)]
        return []

    def rest(self) -> list[TracedRequest]:
        """Those whose end is not recorded; they are open no more."""
        rest = [TracedRequest(routed, None) for routed in self._open.values()]
        self._open.clear()
        return rest
