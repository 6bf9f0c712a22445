"""Real processes for end-to-end tests: engines and a router, started on ports of the system's choice."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest
from patience import PATIENCE

from bench.children import Child, ChildGroup
from bench.router_view import RouterView

__all__ = ["EnginePorts", "Fleet", "eventually", "free_port"]

POLL_SECONDS = 0.05


def free_port() -> int:
    """A port that nobody holds right now, for processes that must come back at the same place."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@dataclass(frozen=True)
class EnginePorts:
    """Where one engine serves HTTP, publishes and replays."""

    http: int
    events: int
    replay: int

    @classmethod
    def free(cls) -> EnginePorts:
        return cls(free_port(), free_port(), free_port())

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.http}"

    def flags(self, **events: Any) -> list[str]:
        config = {
            "publisher": "zmq",
            "endpoint": f"tcp://127.0.0.1:{self.events}",
            "replay_endpoint": f"tcp://127.0.0.1:{self.replay}",
            "bind": True,
            "topic": "kv-events",
            **events,
        }
        return ["--port", str(self.http), "--kv-events-config", json.dumps(config)]


class Fleet:
    """Engines and routers of one test, all stopped when it ends."""

    def __init__(self, group: ChildGroup, session: aiohttp.ClientSession) -> None:
        self.group = group
        self.session = session
        self._started = 0

    async def start_engine(self, ports: EnginePorts, *flags: str, model: str = "sim", **events: Any) -> Child:
        command = [sys.executable, "-m", "engine", "--model-path", model, *ports.flags(**events), *flags]
        return await self._start("engine", command)

    async def start_router(self, replicas: Sequence[str], *flags: str) -> tuple[Child, RouterView]:
        urls = [argument for url in replicas for argument in ("--replica", url)]
        child = await self._start("router", [sys.executable, "-m", "router", *urls, "--port", "0", *flags])
        view = RouterView(self.session, child.urls[0])
        await view.wait_joined(seconds=PATIENCE)
        return child, view

    async def _start(self, kind: str, command: Sequence[str]) -> Child:
        self._started += 1
        name, mark = f"{kind}-{self._started}", f"kvsteer-{kind} ready"
        return await self.group.start(name, command, ready_mark=mark, seconds=PATIENCE)

    async def get(self, address: str, **params: Any) -> Any:
        async with self.session.get(address, params=params) as response:
            assert response.status == 200, await response.text()
            return await response.json()

    async def post(self, url: str, body: Any) -> tuple[int, Any]:
        async with self.session.post(url, json=body) as response:
            return response.status, await response.json(content_type=None)

    async def generate(self, base_url: str, ids: Sequence[int], *, new_tokens: int = 2) -> dict[str, Any]:
        """Send token ids to ``/generate`` of an engine or a router; its ``meta_info``."""
        sampling = {"max_new_tokens": new_tokens, "temperature": 0, "ignore_eos": True}
        status, answer = await self.post(f"{base_url}/generate", {"input_ids": list(ids), "sampling_params": sampling})
        assert status == 200, answer
        meta: dict[str, Any] = answer["meta_info"]
        return meta

    async def held_by_engine(self, url: str, dp_rank: int = 0) -> dict[str, Any]:
        """What the engine's cache holds: copies by (hash, tier), and the number of its last batch."""
        answer = await self.get(f"{url}/kv_blocks", dp_rank=dp_rank)
        return {"last_seq": answer["last_seq"], "blocks": copies(answer["blocks"])}

    async def held_by_index(self, router: RouterView, url: str, dp_rank: int = 0) -> dict[str, Any] | None:
        """What the router believes of the same lane; None while it knows of no lane there, as during a restart."""
        params = {"url": url, "dp_rank": str(dp_rank)}
        async with self.session.get(f"{router.base_url}/index", params=params) as response:
            if response.status == 404:
                return None
            assert response.status == 200, await response.text()
            answer = await response.json()
        return {"last_seq": answer["last_seq"], "blocks": copies(answer["blocks"])}

    async def agreement(self, router: RouterView, url: str, *, known_as: str | None = None) -> dict[str, Any]:
        """Wait until the index equals the engine's truth, and return it; fail with both where it never does.

        ``known_as`` is the engine's URL as the router knows it, where that is another one.
        """
        seen: dict[str, Any] = {}

        async def agree() -> bool:
            seen["engine"] = await self.held_by_engine(url)
            seen["index "] = await self.held_by_index(router, known_as or url)
            return bool(seen["engine"] == seen["index "])

        await eventually(agree, lambda: f"the index never became what the engine holds: {seen}")
        truth: dict[str, Any] = seen["engine"]
        return truth


async def eventually(holds: Callable[[], Awaitable[bool]], complaint: Callable[[], str]) -> None:
    """Ask until it holds; fail with the complaint where it does not in time."""
    try:
        async with asyncio.timeout(PATIENCE):
            while not await holds():  # noqa: ASYNC110 - what is awaited happens in another process
                await asyncio.sleep(POLL_SECONDS)
    except TimeoutError:
        pytest.fail(complaint())


def copies(blocks: Sequence[dict[str, Any]]) -> dict[tuple[str, str], int]:
    return {(block["hash"], block["tier"]): block["copies"] for block in blocks}
