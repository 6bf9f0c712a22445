"""A replica: one engine server at one base URL, what it says it is, how it is, and its lanes."""

from __future__ import annotations

from collections.abc import Callable

from router.choice.speed import ReplicaSpeed
from router.fleet.breaker import Breaker
from router.fleet.health import Health, State
from router.fleet.identity import Identity
from router.fleet.lane import Lane

__all__ = ["Replica"]

MakeLane = Callable[[str, int, ReplicaSpeed], Lane]


class Replica:
    """``identity`` is what the last good probe found; it stays while the replica is away. ``lanes`` by rank, from 0."""

    def __init__(self, url: str, *, speed: ReplicaSpeed, breaker: Breaker, make_lane: MakeLane) -> None:
        self.url = url
        self.health = Health()
        self.breaker = breaker
        self.speed = speed
        self.identity: Identity | None = None
        self.lanes: list[Lane] = []
        self.trouble: str | None = None
        self.when_changed: Callable[[Replica], object] | None = None
        self._make_lane = make_lane

    @property
    def healthy(self) -> bool:
        """Whether requests are sent to it."""
        return self.health.state is State.HEALTHY

    def serves(self, model: str | None) -> bool:
        """Whether it serves a model of that name; no name means any."""
        if self.identity is None:
            return False
        return model is None or self.identity.model(model) is not None

    async def adopt(self, identity: Identity, *, anew: bool) -> None:
        """Bring the lanes in line with what a probe found; ``anew``: another process may be behind the address.

        A lane whose stream is where it was is left alone. Another process starts with a closed breaker.
        """
        self.identity = identity
        if anew:
            self.breaker.succeeded()
        gone = self.lanes[identity.dp_size :]
        del self.lanes[identity.dp_size :]
        while len(self.lanes) < identity.dp_size:
            self.lanes.append(self._make_lane(self.url, len(self.lanes), self.speed))
        self._changed()
        for lane in gone:
            await lane.close()
        for lane in self.lanes:
            stream = identity.stream(lane.dp_rank)
            moved = (stream, identity.block_size) != (lane.stream, lane.advertised_block_size)
            if anew or moved:
                await lane.connect(stream, advertised_block_size=identity.block_size)
                self._changed()
            if stream is None:
                lane.no_events = identity.no_events

    def _changed(self) -> None:
        if self.when_changed is not None:
            self.when_changed(self)

    async def vanish(self) -> None:
        """Nothing listens there any more: its caches are gone with it."""
        for lane in self.lanes:
            await lane.disconnect()

    async def close(self) -> None:
        """The replica leaves the fleet."""
        while self.lanes:
            await self.lanes.pop().close()
