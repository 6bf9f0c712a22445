"""What a router says of itself over HTTP, as values: ``/replicas``, ``/explain`` and ``/ready``.

Only the fields that benches read are named; others are ignored.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import aiohttp
import msgspec

__all__ = [
    "LIVE",
    "ExplainedLane",
    "Explanation",
    "Fault",
    "FleetView",
    "LaneView",
    "Published",
    "ReplicaView",
    "RequestCounts",
    "RouterError",
    "RouterView",
    "TokenCounts",
]

LIVE = "live"
OK = 200
POLL_SECONDS = 0.05
MAX_ERROR_BYTES = 200
T = TypeVar("T")


class RouterError(RuntimeError):
    """The router did not answer as it should, in one line."""


class Fault(msgspec.Struct, frozen=True):
    """Something the router found wrong with a replica."""

    code: str
    detail: str


class LaneView(msgspec.Struct, frozen=True, kw_only=True):
    """One event stream; block sizes are block widths in tokens, None until known. ``stream`` is its state."""

    dp_rank: int
    stream: str
    last_seq: int
    lost: int
    advertised_block_size: int | None
    emitted_block_size: int | None


class TokenCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Sums over finished requests."""

    prompt: int
    predicted_hit: int
    reported_hit: int


class RequestCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Requests sent to a replica, and those of them that have not ended."""

    routed: int
    in_flight: int


class ReplicaView(msgspec.Struct, frozen=True, kw_only=True):
    """One replica as the router sees it."""

    url: str
    state: str
    tokens: TokenCounts
    requests: RequestCounts
    lanes: list[LaneView]
    faults: list[Fault]


class FleetView(msgspec.Struct, frozen=True):
    """The answer of ``/replicas``."""

    replicas: list[ReplicaView]

    @property
    def in_flight(self) -> int:
        """Requests that have not ended, over all replicas."""
        return sum(replica.requests.in_flight for replica in self.replicas)

    @property
    def joined(self) -> bool:
        """Whether every lane's index has caught up with its engine."""
        return all(lane.stream == LIVE for replica in self.replicas for lane in replica.lanes)

    def tokens(self, url: str) -> TokenCounts:
        """One replica's sums."""
        return next(replica.tokens for replica in self.replicas if replica.url == url)

    @property
    def positions(self) -> list[int]:
        """Where every event stream stands."""
        return [lane.last_seq for replica in self.replicas for lane in replica.lanes]


Published = Callable[[FleetView], Awaitable[list[int]]]
"""Asks the engines for the number of the last batch that each lane has published, in the order of ``positions``."""


class ExplainedLane(msgspec.Struct, frozen=True, kw_only=True):
    """What the index holds of a prompt on one lane; ``block_size`` is the width the router hashed the prompt at."""

    url: str
    dp_rank: int
    block_size: int | None
    prompt_tokens: int
    matched_tokens: int


class Explanation(msgspec.Struct, frozen=True):
    """The answer of ``/explain``: what the router knows of one prompt, lane by lane."""

    lanes: list[ExplainedLane]


class RouterView:
    """Reads one router over HTTP."""

    def __init__(self, session: aiohttp.ClientSession, base_url: str) -> None:
        self._session = session
        self.base_url = base_url

    async def fleet(self) -> FleetView:
        """All replicas with their books and streams."""
        return await self._read("GET", "/replicas", FleetView)

    async def explain(self, body: bytes) -> Explanation:
        """What the router would do with a request, without sending it on."""
        return await self._read("POST", "/explain", Explanation, body)

    async def wait_joined(self, *, seconds: float) -> None:
        """Return once the router takes requests and has replayed what every engine published before.

        Without the second half its first predictions would speak of blocks that engines dropped long ago.

        Raises:
            RouterError: it did not within ``seconds``.
        """
        try:
            async with asyncio.timeout(seconds):
                while True:
                    if await self._is_ready() and (await self.fleet()).joined:
                        return
                    await asyncio.sleep(POLL_SECONDS)
        except TimeoutError:
            raise RouterError(f"the router had not joined every event stream after {seconds:g} s") from None

    async def settled(self, published: Published, *, seconds: float) -> FleetView:
        """The fleet once nothing is in flight and the router stands where every engine does.

        An engine says so itself: a stream that does not move may be one whose events are late.

        Raises:
            RouterError: that did not happen within ``seconds``.
        """
        fleet, ends = await self.fleet(), None
        try:
            async with asyncio.timeout(seconds):
                while fleet.in_flight or fleet.positions != ends:
                    await asyncio.sleep(POLL_SECONDS)
                    if not fleet.in_flight:
                        ends = await published(fleet)
                    fleet = await self.fleet()
                return fleet
        except TimeoutError:
            where = f"{fleet.in_flight} in flight, event streams at {fleet.positions} of {ends}"
            raise RouterError(f"the fleet did not settle within {seconds:g} s ({where})") from None

    async def _is_ready(self) -> bool:
        status, _ = await self._ask("GET", "/ready")
        return status == OK

    async def _read(self, method: str, path: str, kind: type[T], body: bytes | None = None) -> T:
        status, raw = await self._ask(method, path, body)
        if status != OK:
            raise RouterError(f"{path} answers {status}: {raw[:MAX_ERROR_BYTES].decode(errors='replace')}")
        try:
            return msgspec.json.decode(raw, type=kind)
        except msgspec.MsgspecError as error:
            raise RouterError(f"{path}: {error}") from None

    async def _ask(self, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        url, headers = self.base_url + path, {"Content-Type": "application/json"}
        try:
            async with self._session.request(method, url, data=body, headers=headers) as response:
                return response.status, await response.read()
        except aiohttp.ClientError as error:
            raise RouterError(f"{url}: {type(error).__name__} {error}") from None
