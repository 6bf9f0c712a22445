"""Repeats prompts on a fleet that nobody else uses: there, what is predicted must be what is found, to the token.

While a workload runs it need not be: requests that are under way at once find each other's blocks before any event has
told of them, all the more where a machine is slow.
"""

from __future__ import annotations

import asyncio

import aiohttp
import msgspec

from bench.client import BenchClient, Reply
from bench.demo.scenario import FleetError
from bench.router_view import ExplainedLane, FleetView, RouterError, RouterView, TokenCounts
from bench.tally import Asked, Tally
from bench.verdict import Probe

__all__ = ["Prober"]


class _Position(msgspec.Struct, frozen=True):
    """The part of an engine's ``/kv_blocks`` that says how far its events go."""

    last_seq: int


class Prober:
    """Asks one router's replicas, through the router, for what they have answered before."""

    def __init__(self, session: aiohttp.ClientSession, view: RouterView, *, settle_seconds: float) -> None:
        self._session = session
        self._view = view
        self._settle_seconds = settle_seconds

    async def level(self) -> FleetView:
        """The fleet once nothing is in flight and the router has applied all that its engines have published."""
        return await self._view.settled(self._published, seconds=self._settle_seconds)

    async def probe(self, tally: Tally) -> list[Probe]:
        """Repeat each replica's last prompt twice: so that it is cached, whatever came after it; then to be judged."""
        asked = tally.last_asked
        for replica, request in asked.items():
            await self._repeat(replica, request)
        before = await self.level()
        lanes = {replica: await self._explained(replica, request) for replica, request in asked.items()}
        replies = {replica: await self._repeat(replica, request) for replica, request in asked.items()}
        after = await self.level()
        return [
            Probe(
                lane=lanes[replica],
                prompt_tokens=reply.prompt_tokens,
                cached_tokens=reply.cached_tokens,
                booked=_booked(before, after, replica),
            )
            for replica, reply in replies.items()
        ]

    async def _repeat(self, replica: str, request: Asked) -> Reply:
        return await BenchClient(self._session, self._view.base_url, pin=replica).ask(request.path, request.body)

    async def _explained(self, replica: str, request: Asked) -> ExplainedLane:
        for lane in (await self._view.explain(request.body)).lanes:
            if lane.url == replica:
                return lane
        raise RouterError(f"the router explains nothing of {replica}, which has answered before")

    async def _published(self, fleet: FleetView) -> list[int]:
        lanes = [(replica.url, lane.dp_rank) for replica in fleet.replicas for lane in replica.lanes]
        return await asyncio.gather(*(self._end(url, rank) for url, rank in lanes))

    async def _end(self, url: str, rank: int) -> int:
        """The number of the last batch that an engine has published."""
        address = f"{url}/kv_blocks?dp_rank={rank}"
        try:
            async with self._session.get(address) as response:
                raw = await response.read()
            return msgspec.json.decode(raw, type=_Position).last_seq
        except (aiohttp.ClientError, msgspec.MsgspecError) as error:
            raise FleetError(f"{address}: {type(error).__name__} {error}") from None


def _booked(before: FleetView, after: FleetView, replica: str) -> TokenCounts:
    """What the router has entered for a replica in between."""
    old, new = before.tokens(replica), after.tokens(replica)
    return TokenCounts(
        prompt=new.prompt - old.prompt,
        predicted_hit=new.predicted_hit - old.predicted_hit,
        reported_hit=new.reported_hit - old.reported_hit,
    )
