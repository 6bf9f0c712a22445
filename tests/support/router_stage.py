"""One test's fleet: fake engines and a real router in this process, spoken to over real sockets."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any

import aiohttp
from event_source import EventSource
from fake_engine import FakeEngine
from patience import until

from contract.endpoint import parse_tcp
from router.choice.tokenization import named_tokenizer
from router.config import RouterConfig
from router.service import serving

__all__ = ["RouterClient", "Stage"]


class RouterClient:
    """Talks to one router."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self.session = session
        self.url = url

    async def get(self, path: str, **params: Any) -> Any:
        async with self.session.get(self.url + path, params=params) as response:
            assert response.status == 200, await response.text()
            return await response.json()

    async def status(self, path: str) -> int:
        async with self.session.get(self.url + path) as response:
            return response.status

    async def post(self, path: str, body: Any, **headers: str) -> tuple[int, Any]:
        async with self.session.post(self.url + path, data=encoded(body), headers=headers) as response:
            return response.status, json.loads(await response.read())

    async def raw(self, path: str, body: Any, **headers: str) -> tuple[int, bytes]:
        async with self.session.post(self.url + path, data=encoded(body), headers=headers) as response:
            return response.status, await response.read()

    async def complete(self, tokens: Sequence[int], **more: Any) -> tuple[int, Any]:
        return await self.post("/v1/completions", {"prompt": list(tokens), **more})

    async def replica(self, engine: FakeEngine) -> Any:
        view = await self.get("/replicas")
        return next(replica for replica in view["replicas"] if replica["url"] == engine.url)

    async def in_flight(self) -> int:
        view = await self.get("/replicas")
        return sum(replica["requests"]["in_flight"] for replica in view["replicas"])

    async def matched(self, tokens: Sequence[int], **more: Any) -> dict[str, int]:
        """Tokens matched by URL; ``more`` is what else the body holds."""
        status, answer = await self.post("/explain", {"prompt": list(tokens), **more})
        assert status == 200, answer
        return {lane["url"]: lane["matched_tokens"] for lane in answer["lanes"]}

    async def until_matched(self, tokens: Sequence[int], expected: dict[str, int], **more: Any) -> None:
        async def agrees() -> bool:
            return await self.matched(tokens, **more) == expected

        await until(agrees, f"matches of {expected}")

    async def until_fault(self, engine: FakeEngine, code: str) -> Any:
        """A fault of the engine's, once it is there."""

        async def there() -> bool:
            return any(fault["code"] == code for fault in (await self.replica(engine))["faults"])

        await until(there, f"{code} is seen")
        return next(fault for fault in (await self.replica(engine))["faults"] if fault["code"] == code)

    async def until_no_fault(self, engine: FakeEngine) -> None:
        async def none() -> bool:
            return not (await self.replica(engine))["faults"]

        await until(none, "no fault is left")

    async def until_state(self, engine: FakeEngine, state: str) -> None:
        async def there() -> bool:
            return (await self.replica(engine))["state"] == state

        await until(there, f"{engine.url} is {state}")


def encoded(body: Any) -> io.BytesIO:
    return io.BytesIO(body if isinstance(body, bytes) else json.dumps(body).encode())


class Stage:
    """What a test has started; everything ends with the test."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self._stack = stack

    async def engine(self, engine: FakeEngine | None = None) -> FakeEngine:
        engine = await (engine or FakeEngine()).start()
        self._stack.callback(engine.leave)
        self._stack.push_async_callback(engine.stop)
        return engine

    async def source(self, source: EventSource | None = None) -> EventSource:
        """Open an event stream that a test writes byte by byte."""
        return await self._stack.enter_async_context(source or EventSource())

    async def wire(self, engine: FakeEngine, source: EventSource | None = None) -> EventSource:
        """Start an engine whose descriptor names an open event stream: the one given, or a new one."""
        source = source or await self.source()
        address = parse_tcp(source.endpoint)
        described = {
            "publisher": "zmq",
            "endpoint_host": address.host,
            "endpoint_port_base": address.port,
            "topic": "",
            "block_size": engine.width,
            "dp_size": 1,
        }
        if source.replay_endpoint is not None:
            described["replay_endpoint_port_base"] = parse_tcp(source.replay_endpoint).port
        engine.server_info["kv_events"] = described
        await self.engine(engine)
        return source

    async def engines(self, count: int) -> list[FakeEngine]:
        return [await self.engine() for _ in range(count)]

    async def router(self, *engines: FakeEngine, ready: bool = True, **options: Any) -> RouterClient:
        defaults = {"port": 0, "seed": 5, "probe_interval": 0.1, "probe_timeout": 5.0, "drain_timeout": 0.5}
        replicas = {"replicas": tuple(engine.url for engine in engines)}
        config = RouterConfig(**{**defaults, **replicas, **options})
        url = await self._stack.enter_async_context(serving(config, tokenizer=named_tokenizer(config.tokenizer)))
        session = await self._stack.enter_async_context(aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)))
        client = RouterClient(session, url)
        if ready:
            await until(lambda: self._is_ready(client), "the router is ready")
        return client

    async def _is_ready(self, client: RouterClient) -> bool:
        return await client.status("/ready") == 200
