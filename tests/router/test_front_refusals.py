"""What the router refuses itself, in OpenAI's error shape, without any engine hearing of it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from connections import connect
from fake_engine import FakeEngine
from patience import in_time, until
from router_stage import RouterClient, Stage

CHAT = {"messages": [{"role": "user", "content": "hi"}]}


def checked(answer: Any) -> dict[str, Any]:
    error: dict[str, Any] = answer["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    return error


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", b"{nope"),
        ("/v1/completions", {"model": "m"}),
        ("/v1/completions", {"prompt": [1, -1]}),
        ("/v1/completions", {"prompt": [1, 1.5]}),
        ("/v1/completions", {"prompt": [2**40]}),
        ("/v1/completions", {"prompt": [999]}),
        ("/v1/chat/completions", {"messages": 3}),
        ("/generate", {}),
        ("/generate", {"input_ids": [999]}),
        ("/explain", {"prompt": [True]}),
        ("/explain", b"[]"),
    ],
)
async def test_a_bad_body_is_a_400_that_reaches_no_engine(stage: Stage, path: str, body: Any) -> None:
    """H11."""
    engine = await stage.engine()
    engine.server_info["vocab_size"] = 300
    router = await stage.router(engine)
    status, answer = await router.post(path, body)
    assert status == 400
    assert checked(answer)["type"] == "invalid_request_error"
    assert engine.asked == []


async def test_a_model_that_nobody_serves_is_a_404(stage: Stage) -> None:
    engine = await stage.engine()
    router = await stage.router(engine)
    for path, body in (("/v1/completions", {"prompt": "a"}), ("/v1/chat/completions", CHAT)):
        status, answer = await router.post(path, {"model": "other", **body})
        assert (status, checked(answer)["code"]) == (404, "model_not_found")
    assert engine.asked == []
    assert (await router.post("/v1/completions", {"model": "m", "prompt": "a"}))[0] == 200
    assert (await router.post("/generate", {"model": "other", "text": "a"}))[0] == 200


async def test_a_body_above_the_limit_is_a_413_whether_or_not_it_says_its_length(stage: Stage) -> None:
    engine = await stage.engine()
    router = await stage.router(engine, max_body_bytes=1000)
    body = json.dumps({"prompt": "x" * 2000}).encode()

    async def in_parts() -> Any:
        for start in range(0, len(body), 100):
            yield body[start : start + 100]

    for data in (body, in_parts()):
        async with router.session.post(f"{router.url}/v1/completions", data=data) as response:
            assert response.status == 413
            assert checked(await response.json())["code"] == "request_too_large"
    assert engine.asked == []
    assert (await router.post("/v1/completions", {"prompt": "x" * 900}))[0] == 200


async def test_a_body_that_does_not_come_is_given_up(stage: Stage) -> None:
    """H7, the body's half."""
    router = await stage.router(await stage.engine(), body_timeout=0.2)
    reader, writer = await connect(router.url)
    writer.write(b'POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: 50\r\n\r\n{"te')
    head = await in_time(reader.readuntil(b"\r\n"))
    assert head.startswith(b"HTTP/1.1 408")
    writer.close()
    await writer.wait_closed()


async def test_a_body_that_is_not_what_its_head_says_is_a_400_and_no_line_in_the_log(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    router = await stage.router(await stage.engine())
    status, answer = await router.post("/v1/completions", b"no gzip", **{"Content-Encoding": "gzip"})
    assert (status, checked(answer)["code"]) == (400, "invalid_body")
    assert (await router.complete([1, 2]))[0] == 200
    assert not [record for record in caplog.records if record.exc_info]


async def test_unknown_routes_and_methods(stage: Stage) -> None:
    router = await stage.router(await stage.engine())
    status, answer = await router.post("/v1/embeddings", {})
    assert (status, checked(answer)["code"]) == (404, "unknown_url")
    async with router.session.get(f"{router.url}/generate") as response:
        assert (response.status, response.headers["Allow"]) == (405, "POST")
        assert checked(await response.json())["code"] == "method_not_allowed"


async def test_an_http2_preface_is_survived(stage: Stage) -> None:
    """H8."""
    router = await stage.router(await stage.engine())
    reader, writer = await connect(router.url)
    writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
    answer = await in_time(reader.read())
    assert answer.startswith(b"HTTP/1.")
    writer.close()
    await writer.wait_closed()
    assert (await router.complete([1, 2]))[0] == 200


async def test_without_a_healthy_replica_there_is_a_503_that_says_when_to_come_back(stage: Stage) -> None:
    engine = FakeEngine(port=1)  # nobody may listen on port 1 here
    router = await stage.router(engine, ready=False)
    async with router.session.post(f"{router.url}/v1/completions", json={"prompt": "a", "model": "m"}) as response:
        assert (response.status, response.headers["Retry-After"]) == (503, "1")
        assert checked(await response.json())["code"] == "no_healthy_replica"
    assert await router.status("/ready") == 503
    assert await router.status("/health") == 200


async def test_a_model_whose_replica_is_ill_is_unavailable_not_unknown(stage: Stage) -> None:
    ill, well = FakeEngine(model="a"), FakeEngine(model="b")
    await stage.engine(ill)
    await stage.engine(well)
    router = await stage.router(ill, well)
    ill.health = 500
    await router.until_state(ill, "unhealthy")
    assert (await router.post("/v1/completions", {"model": "a", "prompt": "x"}))[0] == 503
    assert (await router.post("/v1/completions", {"model": "c", "prompt": "x"}))[0] == 404
    assert (await router.post("/v1/completions", {"model": "b", "prompt": "x"}))[0] == 200


async def test_a_rank_that_nobody_has_is_a_400(stage: Stage) -> None:
    engine = await stage.engine()
    router = await stage.router(engine)
    status, answer = await router.post("/generate", {"text": "a", "routed_dp_rank": 3})
    assert (status, checked(answer)["param"]) == (400, "routed_dp_rank")
    assert engine.asked == []


@pytest.mark.parametrize(("rank", "expected"), [("3", 400), ("0", 200), ("9" * 5000, 200)])
async def test_a_rank_in_the_header_is_explained_as_it_is_routed(stage: Stage, rank: str, expected: int) -> None:
    """What is no rank at all is left to the engine, which here takes anything."""
    router = await stage.router(await stage.engine())
    for path in ("/explain", "/v1/completions"):
        status, answer = await router.post(path, {"prompt": [1, 2]}, **{"X-Data-Parallel-Rank": rank})
        assert status == expected, (path, answer)


async def test_refused_requests_are_counted_by_status(stage: Stage) -> None:
    router = await stage.router(await stage.engine())
    await router.post("/v1/completions", b"{")
    await router.complete([1, 2])

    async def counted() -> bool:
        async with router.session.get(f"{router.url}/metrics") as response:
            text = await response.text()
        return all(
            f'kvsteer_requests_total{{route="/v1/completions",status="{status}"}} 1.0' in text for status in (400, 200)
        )

    await until(counted, "both requests are in /metrics")


async def test_the_client_pools_connection_survives_a_refusal(stage: Stage) -> None:
    router: RouterClient = await stage.router(await stage.engine())
    for _ in range(25):
        assert (await router.post("/v1/completions", b"{"))[0] == 400
    assert (await router.complete([1]))[0] == 200
