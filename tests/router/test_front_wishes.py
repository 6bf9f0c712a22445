"""What a client may ask of the choice: a replica, a rank, the replica of its session; and what engines say of load."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiohttp import web
from fake_engine import FakeEngine, FakeVllm
from patience import until
from router_stage import RouterClient, Stage

from router.config import ConfigError, RouterConfig

PIN = "X-KVSteer-Pin-Replica"


def spread(engines: list[FakeEngine]) -> list[int]:
    return [len(engine.asked) for engine in engines]


async def test_a_pinned_request_goes_to_its_replica_and_the_pin_no_further(stage: Stage) -> None:
    engines = await stage.engines(3)
    router = await stage.router(*engines)
    for _ in range(5):
        assert (await router.post("/v1/completions", {"prompt": [1, 2]}, **{PIN: engines[2].url + "/"}))[0] == 200
    assert spread(engines) == [0, 0, 5]
    assert PIN not in engines[2].asked[0].headers
    explained = (await router.post("/explain", {"prompt": [1, 2]}, **{PIN: engines[1].url}))[1]
    assert [lane["url"] for lane in explained["lanes"]] == [engines[1].url]


@pytest.mark.parametrize("pin", ["http://127.0.0.1:1", "nobody", ""])
async def test_a_pin_to_nobody_is_refused_and_forwarded_nowhere(stage: Stage, pin: str) -> None:
    engines = await stage.engines(2)
    router = await stage.router(*engines)
    status, answer = await router.post("/v1/completions", {"prompt": [1, 2]}, **{PIN: pin})
    assert (status, answer["error"]["param"]) == (400, PIN)
    assert spread(engines) == [0, 0]


async def test_a_pin_to_a_replica_that_is_not_well_gets_no_other(stage: Stage) -> None:
    engines = await stage.engines(2)
    router = await stage.router(*engines)
    engines[0].health = 503
    await router.until_state(engines[0], "unhealthy")
    status, answer = await router.post("/v1/completions", {"prompt": [1, 2]}, **{PIN: engines[0].url})
    assert (status, answer["error"]["code"]) == (503, "no_healthy_replica")
    assert spread(engines) == [0, 0]


@pytest.mark.parametrize("affinity", ["header:X-Session", "session_id"])
async def test_a_session_stays_at_its_replica_and_leaves_it_when_that_is_busy(stage: Stage, affinity: str) -> None:
    engines = await stage.engines(4)
    router = await stage.router(*engines, affinity=affinity)

    async def send(prompt: list[int]) -> None:
        headers = {"X-Session": "s1"} if affinity != "session_id" else {}
        body: dict[str, Any] = {"prompt": prompt, "session_id": "s1"}
        assert (await router.post("/v1/completions", body, **headers))[0] == 200

    for number in range(12):
        await send([number, 7])
    assert sorted(spread(engines)) == [0, 0, 0, 12]
    home = spread(engines).index(12)
    engines[home].hold.clear()
    heavy = {PIN: engines[home].url}
    stuck = asyncio.create_task(router.post("/v1/completions", {"prompt": [9] * 5000}, **heavy))
    await until(lambda: len(engines[home].asked) == 13, "the heavy request is there")
    await send([99, 7])
    assert len(engines[home].asked) == 13
    engines[home].hold.set()
    await stuck


async def test_without_affinity_a_session_is_only_a_field(stage: Stage) -> None:
    engines = await stage.engines(4)
    router = await stage.router(*engines)
    for number in range(24):
        await router.post("/v1/completions", {"prompt": [number, 7], "session_id": "s1"})
    assert sum(count > 0 for count in spread(engines)) > 1


def test_affinity_is_off_a_field_or_a_header() -> None:
    assert RouterConfig(replicas=("http://a",), affinity="header:X-User").session_header == "X-User"
    for affinity in ("X-User", "header:", "header:a b"):
        with pytest.raises(ConfigError, match="affinity must be"):
            RouterConfig(replicas=("http://a",), affinity=affinity)


async def elsewhere(router: RouterClient) -> dict[str, float]:
    answer = (await router.post("/explain", {"prompt": [1, 2]}))[1]
    return {lane["url"]: lane["terms"]["elsewhere"] for lane in answer["lanes"]}


class LoadedEngine(FakeEngine):
    """SGLang's, that others keep busy."""

    def add_routes(self, app: web.Application) -> None:
        super().add_routes(app)
        app.router.add_get("/v1/loads", self._loads)

    async def _loads(self, request: web.Request) -> web.Response:
        load = {"dp_rank": 0, "num_running_reqs": 5, "num_waiting_reqs": 2, "num_waiting_uncached_tokens": 9000}
        return web.json_response({"loads": [load | {"token_usage": 0.4}]})


class LoadedVllm(FakeVllm):
    """vLLM's, that others keep busy."""

    async def _metrics(self, request: web.Request) -> web.Response:
        return web.Response(text='vllm:num_requests_running{engine="0",model_name="m"} 6.0\n')


@pytest.mark.parametrize("kind", [LoadedEngine, LoadedVllm])
async def test_what_others_send_an_engine_counts_where_the_engine_is_asked(stage: Stage, kind: type) -> None:
    loaded, silent = await stage.engine(kind()), await stage.engine()
    router = await stage.router(loaded, silent, engine_load=True)

    async def seen() -> bool:
        return (await elsewhere(router))[loaded.url] > 0

    await until(seen, "the engine's account arrives")
    assert (await elsewhere(router))[silent.url] == 0
    for number in range(10):
        await router.complete([number, 7])
    assert spread([loaded, silent]) == [0, 10]


async def test_engines_are_not_asked_for_their_load_unless_told_to(stage: Stage) -> None:
    loaded = await stage.engine(LoadedEngine())
    router = await stage.router(loaded)
    assert (await elsewhere(router))[loaded.url] == 0
