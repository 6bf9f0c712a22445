"""Repeats prompts on a fleet that nobody else uses: there, what is predicted must be what is found, to the token.

While a workload runs it need not be: requests that are under way at once find each other's blocks before any event has
told of them, all the more where a machine is slow.
"""

from __future__ import annotations

import asyncio

import aiohttp
import msgspec
from yarl import URL

from bench.client import BenchClient, Reply
from bench.demo.scenario import FleetError
from bench.router_view import ExplainedLane, FleetView, RouterError, RouterView, TokenCounts
from bench.tally import Asked, Tally
from bench.verdict import Holding, Probe

__all__ = ["Prober"]


class _Block(msgspec.Struct, frozen=True):
    hash: str
    tier: str
    copies: int


class _Held(msgspec.Struct, frozen=True):
    """Both an engine's ``/kv_blocks`` and a router's ``/index``: what is held after the batch ``last_seq``."""

    last_seq: int
    blocks: list[_Block]


class Prober:
    """Asks one router's replicas, through the router, for what they have answered before."""

    def __init__(self, session: aiohttp.ClientSession, view: RouterView, *, settle_seconds: float) -> None:
        self._session = session
        self._view = view
        self._settle_seconds = settle_seconds

    async def level(self) -> FleetView:
        """The fleet once nothing is in flight and the router has applied all that its engines have published."""
        return await self._view.settled(self._published, seconds=self._settle_seconds)

    async def holdings(self, fleet: FleetView) -> list[Holding]:
        """What every lane's engine holds, beside what the router's index says of it."""
        return [
            Holding(
                where=f"{replica.url} lane {lane.dp_rank}",
                engine=_copies(await self._held(replica.url, "/kv_blocks", dp_rank=lane.dp_rank)),
                index=_copies(await self._held(self._view.base_url, "/index", url=replica.url, dp_rank=lane.dp_rank)),
            )
            for replica in fleet.replicas
            for lane in replica.lanes
        ]

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
        held = await asyncio.gather(*(self._held(url, "/kv_blocks", dp_rank=rank) for url, rank in lanes))
        return [one.last_seq for one in held]

    async def _held(self, base_url: str, path: str, **query: str | int) -> _Held:
        address = URL(base_url + path).with_query(query)
        try:
            async with self._session.get(address) as response:
                raw = await response.read()
            return msgspec.json.decode(raw, type=_Held)
        except (aiohttp.ClientError, msgspec.MsgspecError) as error:
            raise FleetError(f"{address}: {type(error).__name__} {error}") from None


def _copies(held: _Held) -> dict[tuple[str, str], int]:
    return {(block.hash, block.tier): block.copies for block in held.blocks}


def _booked(before: FleetView, after: FleetView, replica: str) -> TokenCounts:
    """What the router has entered for a replica in between."""
    old, new = before.tokens(replica), after.tokens(replica)
    return TokenCounts(
        prompt=new.prompt - old.prompt,
        predicted_hit=new.predicted_hit - old.predicted_hit,
        reported_hit=new.reported_hit - old.reported_hit,
    )
