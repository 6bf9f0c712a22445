"""The cache from outside: ``/flush_cache`` empties it, ``/kv_blocks`` lists it, to be compared with an index."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TypeVar

import msgspec
from aiohttp import web

from contract.api_error import ApiError
from contract.events import BlockStored, Event
from engine.loop import EngineDead, Holding
from engine.server.errors import unavailable
from engine.server.lanes import Lane, parse_rank
from engine.server.replica import Replica
from engine.server.replies import json_reply

__all__ = ["flush_cache", "kv_blocks"]

T = TypeVar("T")


class _Block(msgspec.Struct, frozen=True, kw_only=True):
    """A block's name as unsigned decimal text (JSON readers round big numbers), and how many copies are held."""

    hash: str
    tier: str
    copies: int


class _Blocks(msgspec.Struct, frozen=True, kw_only=True):
    """What one lane holds right after the batch numbered ``last_seq`` was published."""

    dp_rank: int
    last_seq: int
    block_size: int
    blocks: list[_Block]


async def flush_cache(replica: Replica, request: web.Request) -> web.Response:
    """Empty every lane's cache, unless requests are running or waiting: those keep theirs, and the answer is a 400."""
    busy = [lane.dp_rank for lane in replica.lanes if not await _answer(lane.loop.flush)]
    if busy:
        ranks = ", ".join(map(str, busy))
        raise ApiError(f"the cache was not flushed: requests are running or waiting on data-parallel rank {ranks}")
    return web.Response(text="Cache flushed.\n")


async def kv_blocks(replica: Replica, request: web.Request) -> web.Response:
    """The blocks of the lane that ``?dp_rank=`` names (0 where it is not given)."""
    rank = parse_rank(request.query.get("dp_rank", "0"), dp_size=len(replica.lanes), param="dp_rank")
    holding = await _holding(replica.lanes[rank])
    return json_reply(
        _Blocks(
            dp_rank=rank,
            last_seq=holding.seq,
            block_size=replica.config.geometry.block_width,
            blocks=_blocks(holding.events),
        )
    )


async def _holding(lane: Lane) -> Holding:
    events = lane.events
    return await _answer(lambda: lane.loop.snapshot(lambda: -1 if events is None else events.last_seq))


async def _answer(call: Callable[[], Future[T]]) -> T:
    try:
        return await asyncio.wrap_future(call())
    except EngineDead as error:
        raise unavailable(str(error)) from None


def _blocks(events: Sequence[Event]) -> list[_Block]:
    copies = Counter(
        (raw, event.medium) for event in events if isinstance(event, BlockStored) for raw in event.block_hashes
    )
    return [_Block(hash=str(raw), tier=str(medium), copies=count) for (raw, medium), count in copies.items()]
