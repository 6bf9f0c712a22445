"""The block width in ``/server_info``: there while all engines at work report it, else none, with the reason."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import aiohttp
import pytest
from engine_client import Client

from contract.kv_events_config import KVEventsConfig
from engine.config import EngineConfig
from engine.loop import EngineLoop
from engine.model.catalogue import find_model
from engine.ready import ReadyMessage, encode_ready
from engine.runner.sim_runner import SimRunner
from engine.scheduler import Limits, Scheduler
from engine.server.http_server import HttpServer
from engine.server.lanes import Lane
from engine.server.mailroom import Mailroom
from engine.server.replica import Replica

WIDE, NARROW = (encode_ready(ReadyMessage(block_width=width)) for width in (4224, 1056))
EVENTS = KVEventsConfig(publisher="zmq", endpoint="tcp://127.0.0.1:5557")


@asynccontextmanager
async def served(ready: Sequence[bytes | None]) -> AsyncIterator[tuple[str, list[EngineLoop]]]:
    """A replica with one engine for each ready message: its URL, and the engines."""
    model = find_model("sim")
    config = EngineConfig(model_path=model.path, dp_size=len(ready)).fitted_to(model)
    limits = Limits(context_length=100, max_running=8, max_waiting=8, prefill_tokens=100)
    async with AsyncExitStack() as stack:
        loops = []
        for _ in ready:
            scheduler = Scheduler(geometry=config.geometry, total_blocks=100, limits=limits)
            runner = SimRunner(timing=config.sim, geometry=config.geometry)
            loops.append(EngineLoop(scheduler=scheduler, runner=runner, publish=lambda events: None))
            stack.callback(loops[-1].close)
            loops[-1].start()
        lanes = [
            Lane(loop, dp_rank=rank, events=None, ready=message)
            for rank, (loop, message) in enumerate(zip(loops, ready, strict=True))
        ]
        mailroom = Mailroom(asyncio.get_running_loop())
        server = HttpServer(Replica(config, model, lanes=lanes, mailroom=mailroom, events=EVENTS))
        stack.push_async_callback(server.close)
        yield await server.listen(host="127.0.0.1", port=0), loops


@pytest.mark.parametrize(
    ("ready", "reason"),
    [
        ([WIDE, NARROW], "engines disagree (rank 0: 4224, rank 1: 1056)"),
        ([WIDE, None], "no value from rank 1: it sent no ready message"),
        ([encode_ready(ReadyMessage()), WIDE], "no value from rank 0"),
    ],
)
async def test_engines_that_do_not_agree_advertise_nothing_and_say_why(
    http: aiohttp.ClientSession, caplog: pytest.LogCaptureFixture, ready: list[bytes | None], reason: str
) -> None:
    async with served(ready) as (url, _):
        for _ in range(2):
            _, info = await Client(http, url).get("/server_info")
            assert (info["kv_events"], info["kv_events_reason"]) == (None, reason)
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert warnings == [f"no block width is advertised: {reason}"]


async def test_engines_that_agree_advertise_their_width_and_one_that_stops_no_longer_counts(
    http: aiohttp.ClientSession,
) -> None:
    async with served([WIDE, NARROW, WIDE]) as (url, loops):
        client = Client(http, url)
        assert (await client.get("/server_info"))[1]["kv_events"] is None
        loops[1].fail(RuntimeError("its device is gone"))
        with pytest.raises(Exception, match="its device is gone"):
            loops[1].call(lambda: None).result(10)
        _, info = await client.get("/server_info")
        assert info["kv_events"]["block_size"] == 4224
        assert info["kv_events_reason"] is None
        loops[0].fail(RuntimeError("so is this"))
        loops[2].fail(RuntimeError("and this"))
        for loop in loops:
            loop.close()
        _, info = await client.get("/server_info")
        assert (info["kv_events"], info["kv_events_reason"]) == (None, "no engine is present")
