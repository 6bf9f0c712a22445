"""Replicas taken in and out, keys, and how much the router takes at once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from patience import until
from router_stage import RouterClient, Stage

ADMIN = {"Authorization": "Bearer chief"}


async def change(router: RouterClient, method: str, url: str, **headers: str) -> tuple[int, Any]:
    """Add or remove a replica."""
    given: dict[str, Any] = {"json": {"url": url}} if method == "POST" else {"params": {"url": url}}
    async with router.session.request(method, f"{router.url}/replicas", headers=headers, **given) as response:
        return response.status, await response.json()


async def test_a_replica_is_added_used_removed_and_left_alone(stage: Stage) -> None:
    first, second = await stage.engines(2)
    router = await stage.router(first, policy="round_robin")
    status, view = await change(router, "POST", second.url + "/")
    assert (status, view["url"], view["state"]) == (201, second.url, "starting")
    assert (await change(router, "POST", second.url))[0] == 200
    await router.until_state(second, "healthy")
    for number in range(4):
        assert (await router.complete([number]))[0] == 200
    assert len(second.asked) == 2
    assert await change(router, "DELETE", first.url) == (200, {"removed": first.url})
    probes = first.probes
    for number in range(4):
        assert (await router.complete([number]))[0] == 200
    assert (len(first.asked), len(second.asked)) == (2, 6)
    assert first.probes == probes
    assert [replica["url"] for replica in (await router.get("/replicas"))["replicas"]] == [second.url]


async def test_a_request_that_runs_on_a_removed_replica_runs_on(stage: Stage) -> None:
    first, second = await stage.engines(2)
    router = await stage.router(first)
    first.hold.clear()
    running = asyncio.create_task(router.complete([1]))
    await until(lambda: first.asked, "the request runs")
    await change(router, "POST", second.url)
    await change(router, "DELETE", first.url)
    first.hold.set()
    assert (await running)[0] == 200


async def test_an_engine_that_dies_after_its_removal_is_replaced_like_any_other(stage: Stage) -> None:
    first, second = await stage.engines(2)
    router = await stage.router(first, second, policy="round_robin")
    first.hold.clear()
    running = [asyncio.create_task(router.complete([number])) for number in range(2)]
    await until(lambda: first.asked, "a request runs there")
    await change(router, "DELETE", first.url)
    await first.stop()
    assert [status for status, _ in await asyncio.gather(*running)] == [200, 200]


@pytest.mark.parametrize(
    ("method", "url", "expected"),
    [
        ("POST", "nonsense", 400),
        ("POST", "ftp://host", 400),
        ("POST", "http://host/v1", 400),
        ("DELETE", "", 400),
        ("DELETE", "http://nobody:1", 404),
    ],
)
async def test_changes_that_make_no_sense_are_refused(stage: Stage, method: str, url: str, expected: int) -> None:
    router = await stage.router(await stage.engine())
    status, answer = await change(router, method, url)
    assert (status, answer["error"]["param"]) == (expected, "url")


async def test_a_fleet_may_become_empty_and_fill_again(stage: Stage) -> None:
    engine = await stage.engine()
    router = await stage.router(engine)
    await change(router, "DELETE", engine.url)
    assert (await router.complete([1]))[0] == 503
    await change(router, "POST", engine.url)
    await router.until_state(engine, "healthy")
    assert (await router.complete([1]))[0] == 200


# Keys


async def test_changes_need_the_admin_key(stage: Stage) -> None:
    engine = await stage.engine()
    router = await stage.router(engine, admin_key="chief", api_keys=("client",))
    for headers in ({}, {"Authorization": "Bearer client"}, {"Authorization": "Bearer Chief"}):
        assert (await change(router, "DELETE", engine.url, **headers))[0] == 401
    assert (await change(router, "DELETE", engine.url, **ADMIN))[0] == 200


@pytest.mark.parametrize("options", [{"api_keys": ("client",)}, {"host": "0.0.0.0"}])
async def test_without_an_admin_key_only_a_router_of_this_host_alone_takes_changes(
    stage: Stage, options: dict[str, Any]
) -> None:
    engine = await stage.engine()
    router = await stage.router(engine, **options)
    headers = {"Authorization": "Bearer client"}
    status, answer = await change(router, "DELETE", engine.url, **headers)
    assert (status, answer["error"]["code"]) == (403, "changes_not_allowed")


async def test_no_web_page_may_change_a_fleet(stage: Stage) -> None:
    engine = await stage.engine()
    router = await stage.router(engine)
    assert (await change(router, "DELETE", engine.url, Origin="http://page"))[0] == 403


async def test_with_client_keys_only_liveness_readiness_and_metrics_are_open(stage: Stage) -> None:
    router = await stage.router(await stage.engine(), api_keys=("client",), admin_key="chief")
    for path in ("/health", "/ready", "/metrics"):
        assert await router.status(path) == 200
    for path in ("/replicas", "/v1/models", "/index", "/requests/x", "/nowhere"):
        assert await router.status(path) == 401
    for key in ("client", "chief"):
        async with router.session.get(f"{router.url}/replicas", headers={"Authorization": f"bearer {key}"}) as response:
            assert response.status == 200


# Admission


async def test_more_requests_than_allowed_are_told_to_come_again(stage: Stage) -> None:
    engine = await stage.engine()
    router = await stage.router(engine, max_in_flight=2)
    engine.hold.clear()
    running = [asyncio.create_task(router.complete([number])) for number in range(2)]
    await until(lambda: len(engine.asked) == 2, "two requests run")
    async with router.session.post(f"{router.url}/v1/completions", json={"prompt": "a"}) as response:
        assert response.status == 429
        assert response.headers["Retry-After"] == "1"
        assert (await response.json())["error"]["code"] == "too_many_requests"
    engine.hold.set()
    assert [status for status, _ in await asyncio.gather(*running)] == [200, 200]
    assert (await router.complete([1]))[0] == 200
    assert len(engine.asked) == 3
