"""Starts routers and waits until they pass a request on, whatever they print meanwhile."""

from __future__ import annotations

import asyncio
import socket

import msgspec

from bench.children import Child, ChildError, ChildGroup
from bench.client import COMPLETIONS_PATH, RequestError
from bench.router.cases import post
from bench.router.client import connections
from bench.router.process_cost import ProcessCost
from bench.router.routers import KVSTEER, READY, Fleet, Ports, Router, command

__all__ = ["Started", "start_router"]

READY_SECONDS, POLL_SECONDS = 30.0, 0.1


class Started(msgspec.Struct, frozen=True, kw_only=True):
    """A router that runs: where it is, and what it costs."""

    url: str
    child: Child
    cost: ProcessCost


async def start_router(children: ChildGroup, router: Router, fleet: Fleet) -> Started:
    """Start it before ``fleet`` and wait until it has had an answer from there.

    Raises:
        ChildError: it ended, or passed nothing on for ``READY_SECONDS``.
    """
    name = router.name.replace(" ", "")
    ports = Ports(_free_port(), _free_port())
    if router.product == KVSTEER:
        child = await children.start(name, command(router, fleet, ports), ready_mark=READY)
        url = child.urls[0]
    else:
        child = await children.launch(name, command(router, fleet, ports))
        url = f"http://127.0.0.1:{ports.http}"
    try:
        async with asyncio.timeout(READY_SECONDS):
            await children.supervise(_until_it_answers(url, fleet.model))
    except TimeoutError:
        message = f"{name} passed no request on for {READY_SECONDS:g} s; its output ends:\n{child.tail()}"
        raise ChildError(message) from None
    return Started(url=url, child=child, cost=ProcessCost(child.process.pid))


def _free_port() -> int:
    """A port that nobody has now: peers cannot be told to choose one themselves."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


async def _until_it_answers(url: str, model: str) -> None:
    body = msgspec.json.encode({"model": model, "prompt": "hello", "max_tokens": 1})
    while True:
        try:
            async with connections([url], 1) as (connection,):
                await connection.ask(post(COMPLETIONS_PATH, body))
                return
        except RequestError:
            await asyncio.sleep(POLL_SECONDS)
