"""Ten thousand requests through engines that are killed and come back, and clients that leave when they like."""

from __future__ import annotations

import asyncio
import random
import re
from collections import Counter
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from e2e_fleet import EnginePorts, Fleet, eventually

from bench.children import Child
from bench.router_view import RouterView

REQUESTS = 10_000
REPLICAS = 4
CLIENTS = 48
KILL_EVERY = 1000
LEAVING = 0.1
SEED = 20
SIZES = ("--page-size", "3", "--dcp-size", "2", "--tp-size", "2", "--max-total-tokens", "3000")
QUICK = ("--sim-step-us", "200", "--sim-prefill-us-per-token", "2", "--sim-decode-us-per-sequence", "5")
LEVEL_BYTES = 16 * 2**20
"""How much the router may grow over the last half; the first one fills its rings, caches and pools."""


class Clients:
    """Sends requests through a router, and keeps count of what came of them."""

    def __init__(self, fleet: Fleet, router: RouterView, rng: random.Random) -> None:
        self.outcomes: Counter[str] = Counter()
        self.errors: list[str] = []
        self.sent = 0
        self._session = fleet.session
        self._url = router.base_url
        self._rng = rng
        self._roots = [[rng.randrange(256) for _ in range(60)] for _ in range(12)]

    async def run(self) -> None:
        """One of many: send until all are sent."""
        while self.sent < REQUESTS:
            self.sent += 1
            leaves_after = self._rng.uniform(0.0, 0.03) if self._rng.random() < LEAVING else None
            try:
                async with asyncio.timeout(leaves_after):
                    self.outcomes[await self._one()] += 1
            except TimeoutError:
                self.outcomes["left"] += 1
            except aiohttp.ClientError as error:
                self.errors.append(repr(error))

    def _body(self) -> tuple[str, dict[str, Any]]:
        root = self._rng.choice(self._roots)
        ids = root[: self._rng.randrange(6, 60)] + [self._rng.randrange(256) for _ in range(self._rng.randrange(30))]
        if self._rng.random() < 0.3:
            sampling = {"max_new_tokens": 4, "ignore_eos": True}
            return "/generate", {"input_ids": ids, "sampling_params": sampling, "stream": self._rng.random() < 0.5}
        return "/v1/completions", {"model": "sim", "prompt": ids, "max_tokens": 4, "stream": self._rng.random() < 0.5}

    async def _one(self) -> str:
        path, body = self._body()
        async with self._session.post(self._url + path, json=body) as response:
            raw = await response.read()
        if response.status != 200 or not raw:
            self.errors.append(f"{response.status} {raw[:300]!r}")
            return "refused"
        return "cut" if b'"engine_lost"' in raw else "answered"


class Killer:
    """Kills some engines every so many requests, never all of them, and starts them again."""

    def __init__(self, fleet: Fleet, clients: Clients, rng: random.Random, engines: dict[EnginePorts, Child]) -> None:
        self.kills = 0
        self._fleet = fleet
        self._clients = clients
        self._rng = rng
        self._engines = engines

    async def _restart(self, ports: EnginePorts) -> None:
        self._engines[ports] = await self._fleet.start_engine(ports, *SIZES, *QUICK)

    async def run(self) -> None:
        due = KILL_EVERY // 2
        while due < REQUESTS:
            while self._clients.sent < due:  # noqa: ASYNC110 - it is other tasks' work that is waited for
                await asyncio.sleep(0.01)
            victims = self._rng.sample(list(self._engines), self._rng.randrange(1, REPLICAS))
            for ports in victims:
                self._engines[ports].stopping = True
                self._engines[ports].process.kill()
            self.kills += len(victims)
            await asyncio.gather(*(self._engines[ports].process.wait() for ports in victims))
            await asyncio.gather(*(self._restart(ports) for ports in victims))
            due = max(due, self._clients.sent) + KILL_EVERY


async def resident(router: Child, clients: Clients, at: list[int]) -> list[int]:
    """The router's resident bytes when so many requests had been sent."""
    seen = []
    for count in at:
        while clients.sent < count:  # noqa: ASYNC110 - it is other tasks' work that is waited for
            await asyncio.sleep(0.01)
        seen.append(resident_bytes(router.process.pid))
    return seen


def resident_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    match = re.search(r"VmRSS:\s+(\d+) kB", status)
    assert match, status
    return int(match[1]) * 1024


async def books(fleet: Fleet, router: RouterView) -> list[str]:
    """The lines of the router's metrics that must be zero when nothing runs, and are not."""
    async with fleet.session.get(f"{router.base_url}/metrics") as response:
        lines = (await response.text()).splitlines()
    names = ("kvsteer_lane_in_flight", "kvsteer_lane_queued_tokens", "kvsteer_requests_inside")
    found = [line for line in lines if line.startswith(names)]
    assert len(found) == 2 * REPLICAS + 1, found
    return [line for line in found if not line.endswith(" 0.0")]


@pytest.mark.soak
@pytest.mark.timeout(400)
async def test_no_client_pays_for_engines_that_die(fleet: Fleet) -> None:
    """While one replica lives no client sees an error before a first byte; then books are 0, the index is true."""
    print(f"seed {SEED}")
    rng = random.Random(SEED)
    ports = [EnginePorts.free() for _ in range(REPLICAS)]
    router_process, router, clients, killer = await started(fleet, ports, rng)
    sampling = asyncio.create_task(
        resident(router_process, clients, [REQUESTS // 10 * tenth for tenth in range(1, 11)])
    )
    async with asyncio.TaskGroup() as group:
        group.create_task(killer.run())
        for _ in range(CLIENTS):
            group.create_task(clients.run())
    memory = await sampling
    print(dict(clients.outcomes), f"{killer.kills} kills", [size >> 20 for size in memory], "MiB")
    assert clients.errors == []
    assert clients.outcomes["answered"] > REQUESTS / 2
    assert clients.outcomes["left"] > REQUESTS / 100
    assert killer.kills >= REPLICAS
    await settled(fleet, router)
    truths = [await fleet.agreement(router, port.url) for port in ports]
    assert any(truth["blocks"] for truth in truths)
    assert memory[-1] - max(memory[:5]) < LEVEL_BYTES, memory


async def started(
    fleet: Fleet, ports: list[EnginePorts], rng: random.Random
) -> tuple[Child, RouterView, Clients, Killer]:
    engines = [await fleet.start_engine(port, *SIZES, *QUICK) for port in ports]
    flags = ("--probe-interval", "0.3", "--probe-timeout", "5", "--log-level", "error")
    process, router = await fleet.start_router([port.url for port in ports], *flags)
    clients = Clients(fleet, router, rng)
    killer = Killer(fleet, clients, rng, dict(zip(ports, engines, strict=True)))
    return process, router, clients, killer


async def settled(fleet: Fleet, router: RouterView) -> None:
    """Wait until the router's books are empty."""
    left: list[str] = []

    async def empty() -> bool:
        left[:] = await books(fleet, router)
        return not left

    await eventually(empty, lambda: f"the books never became empty: {left}")
