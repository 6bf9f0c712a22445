"""Small real servers that speak an engine's HTTP surface, with real publishers, and do as a test tells them."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from aiohttp import web
from patience import until

from contract.endpoint import parse_tcp
from contract.events import BlockStored, Event
from contract.hashing import block_keys
from contract.kv_events_config import KVEventsConfig
from publisher import EventPublisher, PublisherError
from router.front.server import BACKLOG, stop_listening

__all__ = ["Asked", "FakeEngine", "FakeVllm", "free_port", "stored", "until"]

ATTEMPTS = 50
Answer = Callable[["FakeEngine", web.Request, dict[str, Any]], Awaitable[web.StreamResponse]]


def free_port() -> int:
    """A port that nobody holds right now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def publishers(ranks: int, *, topic: str, buffer_steps: int) -> list[EventPublisher]:
    """One publisher a rank on consecutive ports, live and replay; single ones where the system likes."""
    for _ in range(ATTEMPTS):
        live, replay = (0, 0) if ranks == 1 else (free_port(), free_port())
        config = KVEventsConfig(
            publisher="zmq",
            endpoint=f"tcp://127.0.0.1:{live}",
            replay_endpoint=f"tcp://127.0.0.1:{replay}",
            bind=True,
            topic=topic,
            buffer_steps=buffer_steps,
        )
        made: list[EventPublisher] = []
        try:
            made.extend(EventPublisher(config, dp_rank=rank) for rank in range(ranks))
        except PublisherError:  # somebody holds one of the ports that follow
            for publisher in made:
                publisher.close()
        else:
            return made
    raise AssertionError(f"no {ranks} consecutive ports in {ATTEMPTS} attempts")


def stored(tokens: Sequence[int], *, width: int) -> BlockStored:
    """The store of a prompt's full blocks, under hashes of this engine's own making."""
    full = len(tokens) // width * width
    return BlockStored(
        block_hashes=block_keys(tokens, width=width, parent=77),
        parent_block_hash=None,
        token_ids=list(tokens[:full]),
        block_size=width,
        medium="GPU",
    )


class Asked:
    """A request that reached the engine."""

    def __init__(self, request: web.Request, body: dict[str, Any]) -> None:
        self.path = request.path_qs
        self.headers = request.headers.copy()
        self.body = body
        self.left = asyncio.Event()  # set when the client is gone before the answer was complete


async def answer_at_once(engine: FakeEngine, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    """One chunk of text, streamed or not, with usage as OpenAI and SGLang give it."""
    counts = {"prompt_tokens": engine.prompt_tokens(body), "completion_tokens": 1}
    if request.path == "/generate":
        meta = counts | ({} if engine.cached_tokens is None else {"cached_tokens": engine.cached_tokens})
        whole = {"text": "x", "meta_info": meta}
        return await stream(request, [sse(whole), DONE]) if body.get("stream") else web.json_response(whole)
    details = None if engine.cached_tokens is None else {"cached_tokens": engine.cached_tokens}
    usage = counts | {"total_tokens": 0, "prompt_tokens_details": details}
    if not body.get("stream"):
        return web.json_response({"object": "text_completion", "choices": [{"text": "x"}], "usage": usage})
    asked = (body.get("stream_options") or {}).get("include_usage")
    chunks = [sse({"choices": [{"text": "x"}], "usage": None})]
    chunks += [sse({"choices": [], "usage": usage})] if asked else []
    return await stream(request, [*chunks, DONE])


DONE = b"data: [DONE]\n\n"


def sse(value: object) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


async def stream(request: web.Request, chunks: Sequence[bytes]) -> web.StreamResponse:
    """An event stream of these writes."""
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    for chunk in chunks:
        await response.write(chunk)
    await response.write_eof()
    return response


class FakeEngine:
    """SGLang's surface. ``answer`` does what a test wants; ``hold``, when cleared, keeps every answer back.

    ``server_info`` and ``models`` are served as they are; ``port`` is kept over ``stop`` and ``start``.
    """

    def __init__(self, *, model: str = "m", width: int = 6, ranks: int = 1, port: int = 0) -> None:
        self.model = model
        self.width = width
        self.ranks = ranks
        self.port = port
        self.answer: Answer = answer_at_once
        self.cached_tokens: int | None = 0
        self.hold = asyncio.Event()
        self.hold.set()
        self.health = 200
        self.asked: list[Asked] = []
        self.probes = 0
        self.publishers: list[EventPublisher] = []
        self.server_info: dict[str, Any] = {
            "served_model_name": model,
            "tokenizer_path": "byte",
            "dp_size": ranks,
            "kv_events": None,
        }
        self.models: list[dict[str, Any]] = [{"id": model, "object": "model", "owned_by": "test", "root": model}]
        self._runner: web.AppRunner | None = None
        self._listener: asyncio.Server | None = None
        self._held: socket.socket | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def paths(self) -> list[str]:
        return [asked.path for asked in self.asked]

    async def start(self) -> FakeEngine:
        """Listen, again on the port that it had."""
        self._hold_port()
        app = web.Application(client_max_size=64 * 2**20)
        self.add_routes(app)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        assert self._runner.server is not None
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(
            self._runner.server, "127.0.0.1", self.port, reuse_address=True, backlog=BACKLOG
        )
        return self

    def _hold_port(self) -> None:
        """Bound and not listened to, a port refuses connections, and nobody else gets it while the engine is away."""
        if self._held is None:
            self._held = socket.socket()
            self._held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._held.bind(("127.0.0.1", self.port))
            self.port = self._held.getsockname()[1]

    def leave(self) -> None:
        """Let the port go: a stopped engine will not come back."""
        if self._held is not None:
            self._held.close()
            self._held = None

    def add_routes(self, app: web.Application) -> None:
        app.router.add_get("/server_info", self._server_info)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/tokenize", self._tokenize)
        for path in ("/v1/completions", "/v1/chat/completions", "/generate"):
            app.router.add_post(path, self._generate)

    async def stop(self) -> None:
        """Stop listening and cut every connection; publishers too. The port stays its own until it leaves."""
        if self._runner is not None:
            assert self._listener is not None
            await stop_listening(self._listener)
            await self._runner.cleanup()
            self._runner = None
        for publisher in self.publishers:
            publisher.close()
        self.publishers.clear()

    def publish_on(self, *, topic: str = "kv", advertised_width: int | None = None, buffer_steps: int = 10_000) -> None:
        """Bind a publisher a rank, and advertise them."""
        self.publishers = publishers(self.ranks, topic=topic, buffer_steps=buffer_steps)
        first = self.publishers[0]
        assert first.replay_endpoint is not None
        self.server_info["kv_events"] = {
            "publisher": "zmq",
            "endpoint_host": "127.0.0.1",
            "endpoint_port_base": parse_tcp(first.endpoint).port,
            "topic": topic,
            "block_size": advertised_width or self.width,
            "dp_size": self.ranks,
            "replay_endpoint_port_base": parse_tcp(first.replay_endpoint).port,
        }

    def publish(self, *events: Event, rank: int = 0) -> None:
        self.publishers[rank].publish(events)

    def prompt_tokens(self, body: dict[str, Any]) -> int:
        prompt = body.get("prompt") or body.get("input_ids") or body.get("text") or ""
        return len(prompt) if isinstance(prompt, list) else len(prompt.encode()) + 1

    async def _server_info(self, request: web.Request) -> web.Response:
        self.probes += 1
        return web.json_response(self.server_info, status=self.health)

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": self.models})

    async def _tokenize(self, request: web.Request) -> web.Response:
        body = await request.json()
        return web.json_response({"tokens": [256, *body["prompt"].encode()], "asked": self.url})

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        asked = Asked(request, await request.json())
        self.asked.append(asked)
        try:
            await self.hold.wait()
            return await self.answer(self, request, asked.body)
        except (asyncio.CancelledError, ConnectionError):
            asked.left.set()
            raise


class FakeVllm(FakeEngine):
    """vLLM's surface: no ``/server_info``, streams in ``/kv_event_sources`` (0.31 and later), widths in ``/metrics``.

    ``cache_config`` has the labels of ``vllm:cache_config_info`` for each engine.
    """

    says_sources = True

    def __init__(self, **more: Any) -> None:
        super().__init__(**more)
        self.cache_config: list[dict[str, str]] = []

    def add_routes(self, app: web.Application) -> None:
        super().add_routes(app)
        app.router.add_get("/health", self._health)
        app.router.add_get("/version", self._version)
        app.router.add_get("/kv_event_sources", self._sources)
        app.router.add_get("/metrics", self._metrics)

    async def _server_info(self, request: web.Request) -> web.Response:
        return web.json_response({"detail": "Not Found"}, status=404)

    async def _health(self, request: web.Request) -> web.Response:
        self.probes += 1
        return web.Response(status=self.health)

    async def _version(self, request: web.Request) -> web.Response:
        return web.json_response({"version": "0.33.0"})

    async def _metrics(self, request: web.Request) -> web.Response:
        lines = ["# HELP vllm:cache_config_info Information of the LLMEngine CacheConfig"]
        for labels in self.cache_config:
            listed = ",".join(f'{name}="{value}"' for name, value in labels.items())
            lines.append(f"vllm:cache_config_info{{{listed}}} 1.0")
        return web.Response(text="\n".join([*lines, ""]))

    async def _sources(self, request: web.Request) -> web.Response:
        if not self.says_sources:
            return web.json_response({"detail": "Not Found"}, status=404)
        sources = {
            str(rank): {
                "publisher": "zmq",
                "endpoint": publisher.endpoint.replace("127.0.0.1", "*"),
                "replay_endpoint": publisher.replay_endpoint,
                "topic": "kv",
            }
            for rank, publisher in enumerate(self.publishers)
        }
        return web.json_response(sources)
