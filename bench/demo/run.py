"""Runs a scenario for real: starts the fleet, plays the workload under each policy, judges what came back."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import aiohttp
import msgspec
from rich.console import Console

from bench.children import ChildGroup
from bench.client import COMPLETIONS_PATH, BenchClient
from bench.demo.probing import Prober
from bench.demo.scenario import EngineProcess, FleetError, Scenario
from bench.demo.show import progress
from bench.report import PolicyReport, make_report
from bench.router_view import RouterView
from bench.tally import Ask, Tally
from bench.verdict import Breach, judge

__all__ = ["PolicyRun", "run_policies"]

READY_SECONDS, SETTLE_SECONDS, REQUEST_SECONDS = 60.0, 60.0, 60.0
READ_BUFFER_BYTES = 1 << 20
WARM_UP_TOKENS = 200
_ENGINE_READY, _ROUTER_READY = "kvsteer-engine ready ", "kvsteer-router ready "


class PolicyRun(msgspec.Struct, frozen=True, kw_only=True):
    """One policy's run: its figures, what was found broken, how long it took and how late requests left."""

    report: PolicyReport
    breaches: list[Breach]
    probes: int
    seconds: float
    late_seconds: float


class _Stage:
    """A started fleet and what is needed to play on it."""

    def __init__(self, scenario: Scenario, children: ChildGroup, session: aiohttp.ClientSession) -> None:
        self._scenario = scenario
        self._children = children
        self._session = session
        self._engines: list[str] = []

    async def start_engines(self) -> None:
        """Start all engine processes and let each replica answer once."""
        for urls in await asyncio.gather(*map(self._start_engine, self._scenario.engines())):
            self._engines += urls
        body = msgspec.json.encode({"prompt": list(range(WARM_UP_TOKENS)), "max_tokens": 2, "ignore_eos": True})
        for engine in self._engines:
            await BenchClient(self._session, engine).ask(COMPLETIONS_PATH, body)

    async def _start_engine(self, process: EngineProcess) -> list[str]:
        child = await self._children.start(
            process.name,
            process.command,
            ready_mark=_ENGINE_READY,
            ready_count=process.replicas,
            seconds=READY_SECONDS,
        )
        return child.urls

    async def run(self, policy: str, console: Console) -> PolicyRun:
        """Play the workload on empty caches through a new router."""
        await self._empty_caches()
        router = await self._children.start(
            f"router-{policy}", self._router_command(policy), ready_mark=_ROUTER_READY, seconds=READY_SECONDS
        )
        view, tally = RouterView(self._session, router.urls[0]), Tally(width=self._scenario.width)
        await view.wait_joined(seconds=READY_SECONDS)
        started = time.monotonic()
        with progress(console, policy, total=self._scenario.requests) as advance:
            await self._scenario.play(Ask(BenchClient(self._session, view.base_url), tally, advance))
        seconds = time.monotonic() - started
        run = await self._judge(policy, tally, view, seconds)
        await self._children.stop(router)
        return run

    async def _judge(self, policy: str, tally: Tally, view: RouterView, seconds: float) -> PolicyRun:
        prober = Prober(self._session, view, settle_seconds=SETTLE_SECONDS)
        fleet = await prober.level()
        holdings = await prober.holdings(fleet)
        probes = await prober.probe(tally)
        expected, width = self._scenario.requests, self._scenario.width
        return PolicyRun(
            report=make_report(policy, fleet, tally),
            breaches=judge(fleet, tally, holdings, probes, width=width, expected=expected),
            probes=len(probes),
            seconds=seconds,
            late_seconds=tally.late_seconds,
        )

    async def _empty_caches(self) -> None:
        for engine in self._engines:
            url = f"{engine}/flush_cache"
            try:
                async with self._session.post(url) as response:
                    if response.status != 200:
                        raise FleetError(f"{url} answers {response.status}: {(await response.text())[:200]}")
            except aiohttp.ClientError as error:
                raise FleetError(f"{url}: {type(error).__name__} {error}") from None

    def _router_command(self, policy: str) -> list[str]:
        replicas = [part for engine in self._engines for part in ("--replica", engine)]
        flags = ["--policy", policy, "--port", "0", "--seed", str(self._scenario.seed), "--expose-replica"]
        return [sys.executable, "-m", "router", *replicas, *flags]


async def run_policies(
    scenario: Scenario, policies: Sequence[str], *, console: Console, log_dir: Path
) -> list[PolicyRun]:
    """Play the scenario once under each policy, on one fleet; every process has ended when this returns or raises.

    Raises:
        ChildError: a process died or never became ready.
        FleetError, RouterError, RequestError: a process does not answer as it should.
    """
    async with ChildGroup(log_dir, env=_child_env()) as children, _session() as session:
        stage = _Stage(scenario, children, session)
        await children.supervise(stage.start_engines())
        return [await children.supervise(stage.run(policy, console)) for policy in policies]


def _child_env() -> dict[str, str]:
    """One OpenMP thread a rank: with more, the threads of different ranks fight for the same cores."""
    return {"OMP_NUM_THREADS": "1", **os.environ, "PYTHONUNBUFFERED": "1"}


def _session() -> aiohttp.ClientSession:
    """A pool without a limit of its own: the players bound what is under way."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        timeout=aiohttp.ClientTimeout(total=REQUEST_SECONDS),
        read_bufsize=READ_BUFFER_BYTES,
    )
