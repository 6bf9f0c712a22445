"""What a replica says of itself: ``/server_info``, ``/v1/models``, ``/health``, ``/ready``, ``/health_generate``."""

from __future__ import annotations

import dataclasses
from importlib.metadata import version
from typing import Any

import msgspec
from aiohttp import web

from contract.api_error import ApiError
from contract.descriptor import Descriptor, describe
from engine.cache.specs import Spec
from engine.request import Namespace, SamplingParams
from engine.server.answer import Ask
from engine.server.errors import unavailable
from engine.server.replica import Replica
from engine.server.replies import json_reply

__all__ = ["VERSION", "health", "health_generate", "models", "server_info"]

VERSION = f"kvsteer {version('kvsteer')}"
_HEALTH_NAMESPACE = Namespace(extra_key="kvsteer-health")


class _Group(msgspec.Struct, frozen=True, kw_only=True):
    """A cache group; widths in tokens, ``block_width`` None where nothing is stored by token."""

    kind: str
    sharded: bool
    block_width: int | None
    hit_width: int

    @classmethod
    def of(cls, spec: Spec) -> _Group:
        return cls(kind=spec.kind, sharded=spec.sharded, block_width=spec.block_width, hit_width=spec.hit_width)


async def server_info(replica: Replica, request: web.Request) -> web.Response:
    """The config as flags name it, and what a router needs besides; names are SGLang 0.5.23's where it has one."""
    config = replica.config
    descriptor, reason = _kv_events(replica)
    answer: dict[str, Any] = {option.name: getattr(config, option.name) for option in dataclasses.fields(config)}
    answer |= {
        "served_model_name": config.model_name,
        "tokenizer_path": replica.tokenizer.name,
        "tokenizer": replica.tokenizer.name,
        "vocab_size": replica.tokenizer.vocab_size,
        "port": _port(request),
        "max_total_num_tokens": config.total_blocks * config.geometry.block_width,
        "max_req_input_len": config.sequence_limit - 1,
        "disaggregation_mode": "null",
        "speculative_algorithm": None,
        "enable_hierarchical_cache": False,
        "engine": "kvsteer",
        "version": VERSION,
        "status": "draining" if replica.draining else "ready",
        "kv_events_config": None if replica.events is None else msgspec.json.encode(replica.events).decode(),
        "kv_events": descriptor,
        "kv_events_reason": reason,
        "cache_groups": [_Group.of(spec) for spec in replica.cache_groups.specs],
    }
    return json_reply(answer)


def _kv_events(replica: Replica) -> tuple[Descriptor | None, str | None]:
    """The descriptor, or why there is none."""
    if replica.events is None:
        return None, "KV events are off: no --kv-events-config that names a publisher was given"
    width = replica.advertised_width()
    if width.value is None:
        return None, width.reason
    config = replica.config
    descriptor = describe(replica.events, page_size=config.page_size, dcp_size=config.dcp_size, dp_size=config.dp_size)
    if descriptor is None:
        return (
            None,
            f"the event endpoint {replica.events.endpoint!r} cannot be reached from another host: it is not tcp",
        )
    return msgspec.structs.replace(descriptor, block_size=width.value), None


def _port(request: web.Request) -> int | None:
    """The port this request came in on: the flag's, or what the system chose for port 0."""
    name = request.transport.get_extra_info("sockname") if request.transport else None
    return name[1] if name else None


async def models(replica: Replica, request: web.Request) -> web.Response:
    """The one model that is served."""
    card = {
        "id": replica.config.model_name,
        "object": "model",
        "created": int(replica.started_at),
        "owned_by": "kvsteer",
        "root": replica.config.model_path,
        "parent": None,
        "max_model_len": replica.config.longest_sequence,
    }
    return json_reply({"object": "list", "data": [card]})


async def health(replica: Replica, request: web.Request) -> web.Response:
    """200 while every lane's engine is at work and new requests are taken."""
    if replica.failure is not None:
        raise unavailable(f"the engine has stopped: {replica.failure}")
    if replica.draining:
        raise unavailable("the engine is shutting down")
    return web.Response(text="OK")


async def health_generate(replica: Replica, request: web.Request) -> web.Response:
    """200 once every lane has computed a token, in a namespace of its own so that nobody's cache is touched."""
    sampling = SamplingParams(max_new_tokens=1, temperature=0.0)
    for lane in replica.lanes:
        ask = Ask(rid="health", prompt=replica.tokenizer.encode("?"), sampling=sampling, namespace=_HEALTH_NAMESPACE)
        with replica.exchange(request, [ask], pinned=lane.dp_rank) as exchange:
            (answer,) = await exchange.finished()
        if answer.finish_reason == "abort":
            raise ApiError(f"data-parallel rank {lane.dp_rank} gave the request up", status=503)
    return web.Response(text="OK")
