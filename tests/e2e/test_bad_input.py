"""What a client gets wrong is told in the OpenAI error shape, by router and engine alike, and goes no further."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from e2e_fleet import EnginePorts, Fleet

ENGINE_FLAGS = ("--page-size", "3", "--dcp-size", "2", "--tp-size", "2", "--context-length", "512")
BAD_REQUESTS: list[tuple[int, str, Any]] = [
    (400, "/v1/completions", b"{nope"),
    (400, "/v1/completions", b"[]"),
    (400, "/v1/completions", {"model": "sim"}),
    (400, "/v1/completions", {"model": "sim", "prompt": [1, -2]}),
    (400, "/v1/completions", {"model": "sim", "prompt": [1, 2.5]}),
    (400, "/v1/completions", {"model": "sim", "prompt": [1, True]}),
    (400, "/v1/completions", {"model": "sim", "prompt": {"text": "x"}}),
    (400, "/v1/chat/completions", {"model": "sim", "messages": "hello"}),
    (400, "/generate", {"input_ids": [1, "2"]}),
    (400, "/generate", {}),
    (404, "/v1/completions", {"model": "no-such-model", "prompt": "x"}),
    (404, "/v1/chat/completions", {"model": "no-such-model", "messages": [{"role": "user", "content": "x"}]}),
    (404, "/v1/no-such-route", {}),
    (413, "/v1/completions", b'{"model": "sim", "prompt": "' + b"x" * 40_000_000 + b'"}'),
]


async def refused(fleet: Fleet, base_url: str, path: str, body: Any) -> tuple[int, Any]:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    async with fleet.session.post(
        base_url + path, data=io.BytesIO(raw), headers={"Content-Type": "application/json"}
    ) as response:
        return response.status, await response.json()


@pytest.mark.parametrize("through", ["router", "engine"])
async def test_bad_requests_are_refused_in_the_openai_shape_and_go_no_further(fleet: Fleet, through: str) -> None:
    ports = EnginePorts.free()
    await fleet.start_engine(ports, *ENGINE_FLAGS)
    _, router = await fleet.start_router([ports.url])
    base_url = router.base_url if through == "router" else ports.url
    for expected, path, body in BAD_REQUESTS:
        status, answer = await refused(fleet, base_url, path, body)
        assert status == expected, (path, answer)
        assert isinstance(answer["error"]["message"], str), (path, answer)
        assert {"type", "code", "param"} <= answer["error"].keys(), (path, answer)
    assert (await router.fleet()).replicas[0].requests.routed == 0
    assert (await fleet.held_by_engine(ports.url))["blocks"] == {}
    assert (await fleet.generate(base_url, [1, 2, 3]))["prompt_tokens"] == 3
