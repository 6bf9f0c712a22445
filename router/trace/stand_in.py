"""HTTP of a recorded replica: enough for a router to find its streams by its URL. It computes nothing.

``/server_info`` has the descriptor that was recorded, right or wrong, with the ports of today.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
from aiohttp import web

from contract.descriptor import Descriptor
from program.refusals import in_openai_shape
from router.front.errors import unavailable
from router.front.server import BindError

__all__ = ["StandIn", "standing_in"]

_REFUSED = "this is a recorded replica that `kvsteer-router trace replay --serve` plays: it computes nothing"


class StandIn(msgspec.Struct, frozen=True, kw_only=True):
    """What the replica says of itself. ``engine`` decides how routers read it; ``model`` is the name it serves."""

    url: str
    engine: str | None
    version: str | None
    model: str
    descriptor: Descriptor

    def server_info(self) -> dict[str, object]:
        """The answer of ``/server_info``."""
        return {
            "engine": self.engine,
            "version": self.version,
            "served_model_name": self.model,
            "kv_events": msgspec.to_builtins(self.descriptor),
            "recorded_url": self.url,
        }


@asynccontextmanager
async def standing_in(replica: StandIn, *, host: str, port: int) -> AsyncIterator[str]:
    """Serve a replica; the URL it is at. Port 0 lets the system choose.

    Raises:
        BindError: the address cannot be listened on.
    """
    runner = web.AppRunner(_application(replica), access_log=None)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, host, port).start()
        except OSError as error:
            raise BindError(f"cannot listen on {host}:{port}: {error.strerror}") from None
        yield f"http://{_named(host)}:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def _application(replica: StandIn) -> web.Application:
    async def server_info(http: web.Request) -> web.Response:
        return _json(replica.server_info())

    async def models(http: web.Request) -> web.Response:
        return _json({"object": "list", "data": [{"id": replica.model, "object": "model"}]})

    async def health(http: web.Request) -> web.Response:
        return web.Response(text="OK")

    async def refuse(http: web.Request) -> web.Response:
        raise unavailable(_REFUSED, code="recorded_replica")

    app = web.Application(middlewares=[in_openai_shape("router")])
    app.router.add_get("/server_info", server_info)
    app.router.add_get("/v1/models", models)
    app.router.add_get("/health", health)
    app.router.add_post("/{path:.*}", refuse)
    return app


def _json(value: object) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), content_type="application/json")


def _named(host: str) -> str:
    return f"[{host}]" if ":" in host else host
