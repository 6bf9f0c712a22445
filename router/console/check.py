"""``kvsteer-router check URL...``: joins running replicas for a few seconds and says which are silently at zero.

Each replica is joined by a router of its own on a loopback port, so that the verdict is that of the real thing: its
probes, its streams, its index, its diagnoses. A URL that is a router's is asked for its ``/replicas`` instead: its
verdicts rest on real traffic.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import sys
from collections.abc import Sequence
from random import SystemRandom

import aiohttp
import msgspec
import uvloop

from router.config import RouterConfig
from router.console.probe import Probed, probe_lane
from router.console.reader import ReadError, RouterReader, reading
from router.console.tables import print_verdicts
from router.console.verdict import ReplicaVerdict, judge
from router.fleet.health import State
from router.front.views import ReplicaView
from router.service import serving

__all__ = ["CheckOptions", "run_check"]

ANSWER_SECONDS = 60.0
FIRST_LOOK_SECONDS = 2.0
_LOOK_EVERY = 0.1


class CheckOptions(msgspec.Struct, frozen=True, kw_only=True):
    """``config`` names the replicas; ``seconds`` is how long each stream is listened to. ``api_key`` is for routers."""

    config: RouterConfig
    api_key: str
    seconds: float
    probe: bool
    as_json: bool


def run_check(options: CheckOptions) -> int:
    """Print the verdicts; the exit status: 0 where every replica's hits are found, 1 where one's are not."""
    logging.basicConfig(level=logging.ERROR)  # what the diagnoses would log is what is printed
    verdicts = uvloop.run(_check_all(options))
    if options.as_json:
        passed = all(verdict.passed for verdict in verdicts)
        sys.stdout.write(msgspec.json.encode({"healthy": passed, "replicas": verdicts}).decode() + "\n")
    else:
        print_verdicts(verdicts)
    return 0 if all(verdict.passed for verdict in verdicts) else 1


async def _check_all(options: CheckOptions) -> list[ReplicaVerdict]:
    async with reading(options.api_key) as session:
        found = await asyncio.gather(*(_check(session, url, options) for url in options.config.urls))
    return [verdict for verdicts in found for verdict in verdicts]


async def _check(session: aiohttp.ClientSession, url: str, options: CheckOptions) -> Sequence[ReplicaVerdict]:
    try:
        fleet = await RouterReader(session, url, seconds=FIRST_LOOK_SECONDS).fleet()
    except ReadError:
        return [await _join(session, url, options)]
    return [judge(replica) for replica in fleet.replicas]


async def _join(session: aiohttp.ClientSession, url: str, options: CheckOptions) -> ReplicaVerdict:
    async with serving(_alone(options.config, url), tokenizer=None) as own:
        router = RouterReader(session, own, seconds=ANSWER_SECONDS)
        view = await _listened(router, options.seconds)
        probes: list[Probed] = []
        if options.probe and view.state is State.HEALTHY:
            probes = await _probe(router, view, options.seconds)
            view = await _only(router)
        return judge(view, probes=probes)


def _alone(config: RouterConfig, url: str) -> RouterConfig:
    """A router in front of this replica only; it routes nothing but probes, whose token ids it is given."""
    return dataclasses.replace(
        config,
        replicas=(url,),
        host="127.0.0.1",
        port=0,
        api_keys=(),
        tokenizer="off",
        probe_interval=0.5,
        drain_timeout=0.0,
    )


async def _listened(router: RouterReader, seconds: float) -> ReplicaView:
    """The replica after the time is up; sooner where a fault shows."""
    view = await _met(router)
    try:
        async with asyncio.timeout(seconds):
            while not any(fault.code.blinding for fault in view.faults):
                await asyncio.sleep(_LOOK_EVERY)
                view = await _only(router)
    except TimeoutError:
        pass
    return view


async def _met(router: RouterReader) -> ReplicaView:
    """The replica once its first probe has succeeded or failed: only then is there anything to listen to."""
    view = await _only(router)
    while view.state is State.STARTING and view.trouble is None:
        await asyncio.sleep(_LOOK_EVERY)
        view = await _only(router)
    return view


async def _only(router: RouterReader) -> ReplicaView:
    (view,) = (await router.fleet()).replicas
    return view


async def _probe(router: RouterReader, view: ReplicaView, seconds: float) -> list[Probed]:
    chance = SystemRandom()
    return [await probe_lane(router, view, lane, chance=chance, seconds=seconds) for lane in view.lanes]
