"""The engines of an end-to-end run over HTTP: who they are, what they count, and emptying them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence

import aiohttp
import msgspec

from bench.router.routers import Fleet, Replica
from contract.descriptor import parse_descriptor
from contract.kv_events_config import KVEventsConfig

__all__ = ["Books", "Engines", "EnginesError"]

_LANE = r'\{dp_rank="0"\} (\S+)$'


class EnginesError(RuntimeError):
    """An engine that does not answer as it should, in one line."""


class Books(msgspec.Struct, frozen=True, kw_only=True):
    """What one engine has counted, in tokens."""

    prompt_tokens: int
    cached_tokens: int
    prefilled_tokens: int

    def since(self, before: Books) -> Books:
        """What came after ``before``."""
        was = msgspec.structs.asdict(before)
        return Books(**{name: value - was[name] for name, value in msgspec.structs.asdict(self).items()})


class Engines:
    """Some engines of ours."""

    def __init__(self, session: aiohttp.ClientSession, urls: Sequence[str]) -> None:
        self._session = session
        self._urls = urls

    async def fleet(self, *, model: str) -> Fleet:
        """What routers are told of them.

        Raises:
            EnginesError: one says nothing of its events.
        """
        infos = [msgspec.json.decode(await self._ask("GET", url, "/server_info")) for url in self._urls]
        descriptors = list(map(parse_descriptor, infos))
        if (silent := descriptors.count(None)) or not infos:
            raise EnginesError(f"{silent} of {len(infos)} engines publish no events")
        return Fleet(
            replicas=[_replica(url, info["kv_events_config"]) for url, info in zip(self._urls, infos, strict=True)],
            model=model,
            block_width=infos[0]["kv_events"]["block_size"],
        )

    async def books(self) -> list[Books]:
        """Those of each, in order."""
        return list(await asyncio.gather(*map(self._books, self._urls)))

    async def empty(self) -> None:
        """Have all of them drop what they hold."""
        await asyncio.gather(*(self._ask("POST", url, "/flush_cache") for url in self._urls))

    async def _books(self, url: str) -> Books:
        text = (await self._ask("GET", url, "/metrics")).decode()
        counts = {}
        for name in Books.__struct_fields__:
            found = re.search(f"^kvsteer_engine_{name}_total{_LANE}", text, re.MULTILINE)
            if found is None:
                raise EnginesError(f"{url}/metrics does not count {name}")
            counts[name] = int(float(found[1]))
        return Books(**counts)

    async def _ask(self, method: str, url: str, path: str) -> bytes:
        try:
            async with self._session.request(method, url + path) as response:
                body = await response.read()
        except aiohttp.ClientError as error:
            raise EnginesError(f"{url}{path}: {type(error).__name__} {error}") from None
        if response.status != 200:
            raise EnginesError(f"{url}{path} answers {response.status}: {body[:200].decode(errors='replace')}")
        return body


def _replica(url: str, config: str) -> Replica:
    events = msgspec.json.decode(config, type=KVEventsConfig)
    return Replica(url, events.endpoint, events.replay_endpoint)
