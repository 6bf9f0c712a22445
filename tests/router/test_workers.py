"""Several workers on one port, as real processes: whichever of them answers, it answers for the router."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
from command import kvsteer_router
from connections import takes_connections
from fake_engine import FakeEngine, stored
from patience import in_time, until
from prometheus_client.parser import text_string_to_metric_families
from router_stage import Stage

from router.trace.flags import run_trace
from router.trace.played_trace import PlayedTrace

WORKERS = 2
ID_HEADER = "X-KVSteer-Request-Id"


class Workers:
    """A router of several workers, its parent's process, and what it logs."""

    def __init__(self, process: Process, url: str, log: asyncio.StreamReader, session: aiohttp.ClientSession) -> None:
        self.process = process
        self.url = url
        self.log = log
        self.session = session  # which keeps no connections: each request goes to a worker of the system's choice

    async def ask(self, method: str, path: str, **more: Any) -> tuple[int, Any, str]:
        """Status, answer and the request's id."""
        async with self.session.request(method, self.url + path, **more) as response:
            return response.status, await response.json(), response.headers.get(ID_HEADER, "")

    async def complete(self) -> str:
        """The id of a request that was answered well."""
        status, _, number = await self.ask("POST", "/v1/completions", json={"prompt": [1, 2, 3]})
        assert status == 200
        return number

    async def of_each(self) -> dict[str, str]:
        """An id of a request to each worker."""
        found: dict[str, str] = {}

        async def all_found() -> bool:
            number = await self.complete()
            found[number.split("-")[0]] = number
            return len(found) == WORKERS

        await until(all_found, "every worker was asked")
        return found

    async def pids(self) -> list[int]:
        """Of the workers, as long as they are there."""
        listing = await asyncio.create_subprocess_exec("ps", "-o", "pid=", "--ppid", str(self.process.pid), stdout=PIPE)
        out, _ = await listing.communicate()
        return [int(pid) for pid in out.split() if int(pid) != listing.pid]

    async def up(self) -> set[str]:
        """Places of the workers that answer."""
        async with self.session.get(f"{self.url}/metrics") as response:
            families = {family.name: family for family in text_string_to_metric_families(await response.text())}
        return {sample.labels["worker"] for sample in families["kvsteer_worker_up"].samples if sample.value}

    async def until_logged(self, what: str) -> str:
        """The next line of the log that says it."""
        while line := (await in_time(self.log.readline())).decode():
            if what in line:
                return line
        raise AssertionError(f"the log ended without {what!r}")


@asynccontextmanager
async def workers(*engines: FakeEngine, more: Sequence[str] = ()) -> AsyncIterator[Workers]:
    flags = [*more, *(flag for engine in engines for flag in ("--replica", engine.url))]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "router", *flags, "--port", "0", "--workers", str(WORKERS), "--probe-interval", "0.1",
        stdout=PIPE, stderr=PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        line = (await in_time(process.stdout.readline())).decode()
        assert line.startswith("kvsteer-router ready http://127.0.0.1:"), line
        connector = aiohttp.TCPConnector(force_close=True)
        async with aiohttp.ClientSession(connector=connector) as session:
            router = Workers(process, line.split()[-1], process.stderr, session)
            for _ in range(10 * WORKERS):  # both are ready, as likely as not being struck by lightning
                await until(lambda: is_ready(router), "the router is ready")
            yield router
    finally:
        if process.returncode is None:
            process.terminate()
        await in_time(process.communicate())


async def is_ready(router: Workers) -> bool:
    async with router.session.get(f"{router.url}/ready") as response:
        return response.status == 200


async def test_whichever_worker_answers_it_answers_for_all(stage: Stage) -> None:
    first, second = await stage.engines(2)
    async with workers(first) as router:
        numbers = await router.of_each()
        for number in numbers.values():
            for _ in range(4):
                status, receipt, _ = await router.ask("GET", f"/requests/{number}")
                assert (status, receipt["id"]) == (200, number)
        assert (await router.ask("GET", "/requests/1-0123456789ab-1"))[0] == 404
        _, fleet, _ = await router.ask("GET", "/replicas")
        assert fleet["replicas"][0]["requests"]["routed"] == len(first.asked)
        assert await router.up() == set(numbers)

        assert (await router.ask("POST", "/replicas", json={"url": second.url}))[0] == 201
        for _ in range(4):
            assert (await router.ask("POST", "/replicas", json={"url": second.url}))[0] in (200, 201)
        assert (await router.ask("DELETE", "/replicas", params={"url": first.url}))[0] == 200

        async def only_the_second() -> bool:
            views = [await router.ask("GET", "/replicas") for _ in range(4)]
            return all([replica["url"] for replica in view["replicas"]] == [second.url] for _, view, _ in views)

        await until(only_the_second, "every worker has heard of both changes")


async def test_a_worker_that_is_killed_is_named_and_comes_back_as_its_siblings_are(stage: Stage) -> None:
    first, second = await stage.engines(2)
    async with workers(first) as router:
        await router.of_each()
        assert (await router.ask("POST", "/replicas", json={"url": second.url}))[0] == 201
        assert (await router.ask("DELETE", "/replicas", params={"url": first.url}))[0] == 200
        killed = (await router.pids())[0]
        os.kill(killed, signal.SIGKILL)
        line = await router.until_logged(f"(pid {killed})")
        assert "was killed by SIGKILL" in line
        assert "started again" in line
        assert await is_ready(router)  # the other one is there all the time
        await until(lambda: both_up(router), "the worker is back")
        asked = len(first.asked)
        await router.of_each()
        assert len(first.asked) == asked, "the new worker knows what was changed before it came"

        pids = await router.pids()
        router.process.kill()
        await until(lambda: not any(runs(pid) for pid in pids), "workers without a parent end")


async def both_up(router: Workers) -> bool:
    return len(await router.up()) == WORKERS


async def test_running_requests_end_before_the_workers_do(stage: Stage) -> None:
    engine = await stage.engine()
    async with workers(engine) as router:
        pids = await router.pids()
        assert len(pids) == WORKERS
        engine.hold.clear()
        asking = [asyncio.create_task(router.complete()) for _ in range(4)]
        await until(lambda: len(engine.asked) == len(asking), "the engine has the requests")
        router.process.terminate()
        await until(lambda: refused(router.url), "no more connections are taken")
        engine.hold.set()
        assert all(await asyncio.gather(*asking))
        assert await in_time(router.process.wait()) == 0
        assert not any(runs(pid) for pid in pids)


async def refused(url: str) -> bool:
    return not await takes_connections(url)


def runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_a_port_that_others_would_share_is_said_to_be_taken_in_one_line() -> None:
    """Two routers must not split each other's requests."""
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = str(holder.getsockname()[1])
        ended = await kvsteer_router("--replica", "http://127.0.0.1:9", "--port", port, "--workers", "2")
    assert (ended.status, ended.out, ended.err.count("\n")) == (1, "", 1), ended.err
    assert port in ended.err


async def test_each_worker_records_into_a_trace_of_its_own_and_these_can_be_merged(
    stage: Stage, tmp_path: Path
) -> None:
    """A worker that is killed loses nothing that it wrote, and the one in its place goes on behind it."""
    engine = FakeEngine()
    engine.publish_on()
    await stage.engine(engine)
    engine.publish(stored([1, 2, 3] * 4, width=engine.width))
    async with workers(engine, more=("--trace-out", str(tmp_path / "fleet.kvtrace"))) as router:
        await router.of_each()
        os.kill((await router.pids())[0], signal.SIGKILL)
        await router.until_logged("was killed by SIGKILL")
        await until(lambda: both_up(router), "the worker is back")
        await router.of_each()
        asked = len(engine.asked)
    parts = [tmp_path / f"fleet.{place}.kvtrace" for place in range(WORKERS)]
    assert run_trace(["merge", *map(str, parts), str(tmp_path / "all.kvtrace")]) == 0
    trace = PlayedTrace(tmp_path / "all.kvtrace").run()
    assert len(trace.requests) == asked == sum(len(PlayedTrace(part).run().requests) for part in parts)
    (lane,) = trace.lanes
    assert trace.matched_tokens([1, 2, 3] * 4)[lane.name] == 12


async def test_a_trace_that_no_worker_can_write_is_named_once(tmp_path: Path) -> None:
    (tmp_path / "fleet.1.kvtrace").write_text("somebody's notes")
    trace_out = ("--trace-out", str(tmp_path / "fleet.kvtrace"))
    ended = await kvsteer_router("--replica", "http://127.0.0.1:9", "--port", "0", "--workers", "2", *trace_out)
    assert (ended.status, ended.out, ended.err.count("\n")) == (1, "", 1), ended.err
    assert f"{tmp_path}/fleet.1.kvtrace is no .kvtrace file" in ended.err
