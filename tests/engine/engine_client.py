"""A client of one engine for tests."""

from __future__ import annotations

import io
import json
from typing import Any

import aiohttp


class Client:
    """HTTP to one base URL, in JSON."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self.session = session
        self.url = url

    async def post(self, path: str, body: Any, **headers: str) -> tuple[int, Any]:
        """Status and decoded body; ``body`` may be raw bytes."""
        data = {"data": io.BytesIO(body)} if isinstance(body, bytes) else {"json": body}
        async with self.session.post(self.url + path, headers=_spelled(headers), **data) as response:
            return response.status, await response.json()

    async def get(self, path: str) -> tuple[int, Any]:
        async with self.session.get(self.url + path) as response:
            text = await response.text()
            return response.status, await response.json() if response.content_type == "application/json" else text

    async def stream(self, path: str, body: Any) -> list[Any]:
        """The events of an answer, decoded; the last must be ``[DONE]`` and is left out."""
        async with self.session.post(self.url + path, json=body | {"stream": True}) as response:
            assert response.status == 200, await response.text()
            assert response.content_type == "text/event-stream"
            events = (await response.text()).split("\n\n")
        assert events[-2:] == ["data: [DONE]", ""]
        return [json.loads(event.removeprefix("data: ")) for event in events[:-2]]


def _spelled(headers: dict[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in headers.items()}


async def busy(client: Client) -> int:
    _, answer = await client.get("/v1/loads")
    load = answer["loads"][0]
    return int(load["num_running_reqs"] + load["num_waiting_reqs"])


async def is_busy(client: Client, requests: int = 1) -> bool:
    return await busy(client) >= requests


async def is_idle(client: Client) -> bool:
    return await busy(client) == 0
