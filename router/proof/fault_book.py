"""Since when each fault has been there. Pure; times are handed in."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from router.proof.fault import Code, Fault, Sighting

__all__ = ["FaultBook"]

_Key = tuple[Code, int | None]


class FaultBook:
    """Faults that hold now, by replica: at most one of a code for each lane, so its size is bounded by the fleet's."""

    def __init__(self) -> None:
        self._by_replica: dict[str, dict[_Key, Sighting]] = {}

    def enter(self, url: str, faults: Iterable[Fault], *, now: float) -> list[Sighting]:
        """Note what is wrong with a replica now; those of them that were not there before."""
        before = self._by_replica.get(url, {})
        held: dict[_Key, Sighting] = {}
        for fault in faults:
            key = (fault.code, fault.dp_rank)
            since = before[key].first_seen if key in before else now
            held[key] = Sighting(**msgspec.structs.asdict(fault), first_seen=since, last_seen=now)
        self._by_replica[url] = held
        return [sighting for key, sighting in held.items() if key not in before]

    def faults(self, url: str) -> list[Sighting]:
        """What was wrong when the replica was looked at last."""
        return list(self._by_replica.get(url, {}).values())

    def forget(self, url: str) -> None:
        """The replica has left the fleet."""
        self._by_replica.pop(url, None)
