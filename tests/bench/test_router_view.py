"""Reading a router: it is waited for until it knows its fleet, and what it should not answer is one line."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from bench.router_view import FleetView, RouterError, RouterView


class Router:
    """Answers what a test sets, over a real socket."""

    def __init__(self) -> None:
        self.ready = True
        self.lane: dict[str, Any] = {
            "dp_rank": 0,
            "stream": "live",
            "last_seq": 3,
            "lost": 0,
            "advertised_block_size": 6,
            "emitted_block_size": 6,
            "blocks": {"GPU": 2},
        }
        self.in_flight = 0
        self.asked = asyncio.Event()
        self.published = 3

    async def on_ready(self, request: web.Request) -> web.Response:
        return web.Response(status=200 if self.ready else 503)

    async def on_replicas(self, request: web.Request) -> web.Response:
        self.asked.set()
        replica = {
            "url": "http://a",
            "state": "healthy",
            "tokens": {"prompt": 9, "predicted_hit": 6, "reported_hit": 6},
            "requests": {"routed": 1, "in_flight": self.in_flight},
            "lanes": [self.lane],
            "faults": [],
        }
        return web.json_response({"replicas": [replica]})

    async def ends(self, fleet: FleetView) -> list[int]:
        """Where the engines' streams end."""
        assert not fleet.in_flight, "what still runs has more to tell"
        return [self.published]

    async def on_explain(self, request: web.Request) -> web.Response:
        return web.json_response({"error": {"message": "no such model"}}, status=404)


@pytest.fixture
async def router() -> AsyncIterator[tuple[Router, RouterView]]:
    router, app = Router(), web.Application()
    app.router.add_get("/ready", router.on_ready)
    app.router.add_get("/replicas", router.on_replicas)
    app.router.add_post("/explain", router.on_explain)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0]
    async with aiohttp.ClientSession() as session:
        yield router, RouterView(session, f"http://{host}:{port}")
    await runner.cleanup()


async def test_a_router_is_waited_for_until_it_has_replayed_every_stream(router: tuple[Router, RouterView]) -> None:
    served, view = router
    served.lane["stream"] = "replaying"
    waiting = asyncio.create_task(view.wait_joined(seconds=10))
    await served.asked.wait()
    assert not waiting.done()
    served.lane["stream"] = "live"
    await waiting


@pytest.mark.parametrize(("ready", "stream"), [(False, "live"), (True, "joining")])
async def test_a_router_that_never_joins_is_given_up(
    router: tuple[Router, RouterView], ready: bool, stream: str
) -> None:
    served, view = router
    served.ready, served.lane["stream"] = ready, stream
    with pytest.raises(RouterError, match=r"had not joined every event stream after 0\.2 s"):
        await view.wait_joined(seconds=0.2)


async def test_a_fleet_has_settled_when_nothing_is_in_flight_and_the_router_stands_where_its_engines_do(
    router: tuple[Router, RouterView],
) -> None:
    served, view = router
    served.in_flight, served.published = 1, 5
    settling = asyncio.create_task(view.settled(served.ends, seconds=60))
    for last_seq in (3, 4, 5):
        served.asked.clear()
        await served.asked.wait()
        assert not settling.done()
        served.in_flight, served.lane["last_seq"] = 0, last_seq
    assert (await settling).positions == [5]


@pytest.mark.parametrize(
    ("in_flight", "published", "where"),
    [
        (2, 3, r"2 in flight, event streams at \[3\] of None"),
        (0, 9, r"0 in flight, event streams at \[3\] of (\[9\]|None)"),
    ],
)
async def test_a_fleet_that_never_settles_is_given_up(
    router: tuple[Router, RouterView], in_flight: int, published: int, where: str
) -> None:
    served, view = router
    served.in_flight, served.published = in_flight, published
    with pytest.raises(RouterError, match=rf"did not settle within 0\.2 s \({where}\)"):
        await view.settled(served.ends, seconds=0.2)


async def test_a_refusal_and_an_answer_of_another_shape_are_one_line(router: tuple[Router, RouterView]) -> None:
    served, view = router
    with pytest.raises(RouterError, match=r"/explain answers 404: .*no such model"):
        await view.explain(b"{}")
    del served.lane["last_seq"]
    with pytest.raises(RouterError, match=r"/replicas: .*last_seq"):
        await view.fleet()


async def test_a_router_that_is_gone_is_one_line() -> None:
    async with aiohttp.ClientSession() as session:
        with pytest.raises(RouterError, match=r"http://127\.0\.0\.1:1/replicas: Client"):
            await RouterView(session, "http://127.0.0.1:1").fleet()
