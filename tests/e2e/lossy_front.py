"""A replica behind a network that loses batches: HTTP and replay as they are, its live stream with holes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from collections.abc import Set as AbstractSet

import aiohttp
import zmq
import zmq.asyncio
from aiohttp import web
from e2e_fleet import EnginePorts

from contract.framing import parse_live

__all__ = ["lossy_front"]


@contextlib.asynccontextmanager
async def lossy_front(ports: EnginePorts, *, lost: AbstractSet[int]) -> AsyncIterator[str]:
    """URL of a front that serves the engine, but whose event stream lacks the batches numbered in ``lost``."""
    context = zmq.asyncio.Context()
    subscriber, publisher = context.socket(zmq.SUB), context.socket(zmq.PUB)
    subscriber.subscribe(b"")
    subscriber.connect(f"tcp://127.0.0.1:{ports.events}")
    port = publisher.bind_to_random_port("tcp://127.0.0.1")
    forwarding = asyncio.create_task(_forward(subscriber, publisher, lost))
    try:
        async with aiohttp.ClientSession() as session, _serving(_http_front(session, ports, events_port=port)) as url:
            yield url
    finally:
        forwarding.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await forwarding
        context.destroy(linger=0)


async def _forward(subscriber: zmq.asyncio.Socket, publisher: zmq.asyncio.Socket, lost: AbstractSet[int]) -> None:
    while True:
        frames = await subscriber.recv_multipart()
        if parse_live(frames).seq not in lost:
            await publisher.send_multipart(frames)


def _http_front(session: aiohttp.ClientSession, ports: EnginePorts, *, events_port: int) -> web.Application:
    async def server_info(_: web.Request) -> web.Response:
        async with session.get(f"{ports.url}/server_info") as response:
            info = await response.json()
        info["kv_events"]["endpoint_port_base"] = events_port
        return web.json_response(info)

    async def anything(request: web.Request) -> web.Response:
        body = await request.read()
        async with session.request(request.method, ports.url + request.path_qs, data=body) as response:
            return web.Response(status=response.status, body=await response.read(), content_type="application/json")

    app = web.Application()
    app.router.add_get("/server_info", server_info)
    app.router.add_route("*", "/{path:.*}", anything)
    return app


@contextlib.asynccontextmanager
async def _serving(app: web.Application) -> AsyncIterator[str]:
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0]
        yield f"http://{host}:{port}"
    finally:
        await runner.cleanup()
