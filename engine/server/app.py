"""Which route leads where."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

from aiohttp import web

from engine.server.cache_routes import flush_cache, kv_blocks
from engine.server.chat import chat_completions
from engine.server.completions import completions
from engine.server.generate import generate
from engine.server.info import health, health_generate, models, server_info
from engine.server.loads import loads
from engine.server.replica import Replica
from engine.server.tokenization import detokenize, tokenize
from program.refusals import in_openai_shape

__all__ = ["build_app"]

_Handler = Callable[[Replica, web.Request], Awaitable[web.StreamResponse]]


async def _metrics(replica: Replica, request: web.Request) -> web.Response:
    return replica.metrics.reply()


_ROUTES: tuple[tuple[str, str, _Handler], ...] = (
    ("POST", "/v1/completions", completions),
    ("POST", "/v1/chat/completions", chat_completions),
    ("POST", "/generate", generate),
    ("POST", "/tokenize", tokenize),
    ("POST", "/detokenize", detokenize),
    ("GET", "/v1/models", models),
    ("GET", "/server_info", server_info),
    ("GET", "/get_server_info", server_info),
    ("GET", "/v1/loads", loads),
    ("GET", "/metrics", _metrics),
    ("GET", "/health", health),
    ("GET", "/ready", health),
    ("GET", "/health_generate", health_generate),
    ("GET", "/flush_cache", flush_cache),
    ("POST", "/flush_cache", flush_cache),
    ("GET", "/kv_blocks", kv_blocks),
)


def build_app(replica: Replica) -> web.Application:
    """All routes of one replica."""
    app = web.Application(middlewares=[in_openai_shape("engine")], client_max_size=replica.config.max_body_bytes)
    app.on_response_prepare.append(replica.metrics.count_response)
    for method, path, handler in _ROUTES:
        app.router.add_route(method, path, partial(handler, replica))
    return app
