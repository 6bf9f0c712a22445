"""``GET /v1/loads``: how busy each lane is, under SGLang 0.5.23's field names.

Fields that this engine has no number for are left out rather than made up.
"""

from __future__ import annotations

import time

import msgspec
from aiohttp import web

from contract.api_error import ApiError
from engine.load import Load
from engine.server.info import VERSION
from engine.server.lanes import parse_rank
from engine.server.replica import Replica
from engine.server.replies import json_reply

__all__ = ["loads"]

_SECTIONS = frozenset({"core", "memory", "spec", "lora", "disagg", "queues", "all"})


class _LaneLoad(msgspec.Struct, frozen=True, kw_only=True):
    """``num_waiting_uncached_tokens`` includes what running prefills still have to compute."""

    timestamp: float
    dp_rank: int
    num_running_reqs: int
    num_waiting_reqs: int
    num_waiting_uncached_tokens: int
    num_used_tokens: int
    num_total_tokens: int
    max_total_num_tokens: int
    max_running_requests: int
    token_usage: float
    cache_hit_rate: float
    total_prefill_uncached_tokens: int


class _Loads(msgspec.Struct, frozen=True, kw_only=True):
    timestamp: float
    version: str
    loads: list[_LaneLoad]


async def loads(replica: Replica, request: web.Request) -> web.Response:
    """All lanes, or the one that ``?dp_rank=`` names. Only the core section exists; ``include`` is checked, no more."""
    unknown = set(request.query.get("include", "core").split(",")) - _SECTIONS
    if unknown:
        known = ", ".join(sorted(_SECTIONS))
        raise ApiError(f"include {min(unknown)!r:.40} is none of {known}", param="include")
    wanted = request.query.get("dp_rank")
    lanes = list(replica.lanes)
    if wanted is not None:
        lanes = [replica.lanes[parse_rank(wanted, dp_size=len(lanes), param="dp_rank")]]
    now = time.time()
    entries = [_lane_load(lane.loop.load(), dp_rank=lane.dp_rank, now=now) for lane in lanes]
    return json_reply(_Loads(timestamp=now, version=VERSION, loads=entries))


def _lane_load(load: Load, *, dp_rank: int, now: float) -> _LaneLoad:
    totals = load.totals
    return _LaneLoad(
        timestamp=now,
        dp_rank=dp_rank,
        num_running_reqs=load.running,
        num_waiting_reqs=load.waiting,
        num_waiting_uncached_tokens=load.pending_prefill_tokens,
        num_used_tokens=load.used_tokens,
        num_total_tokens=load.used_tokens + load.pending_prefill_tokens,
        max_total_num_tokens=load.total_tokens,
        max_running_requests=load.max_running,
        token_usage=load.used_tokens / load.total_tokens,
        cache_hit_rate=totals.cached_tokens / totals.prompt_tokens if totals.prompt_tokens else 0.0,
        total_prefill_uncached_tokens=totals.prefilled_tokens,
    )
