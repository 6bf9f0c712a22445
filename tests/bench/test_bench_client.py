"""The client measures what a server really sends, over real sockets, and calls a broken answer broken."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web

from bench.client import CHAT_PATH, COMPLETIONS_PATH, BenchClient, RequestError
from bench.tally import Ask, Tally
from router.front.headers import REPLICA_HEADER

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
USAGE = {"prompt_tokens": 12, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 6}}


@asynccontextmanager
async def serving(handler: Handler) -> AsyncIterator[BenchClient]:
    app = web.Application()
    app.router.add_post("/{path:.*}", handler)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0]
    try:
        async with aiohttp.ClientSession() as session:
            yield BenchClient(session, f"http://{host}:{port}")
    finally:
        await runner.cleanup()


def streaming(*parts: object, gate: asyncio.Event | None = None) -> Handler:
    """Sends parts as events; those after the first wait for the gate."""

    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", REPLICA_HEADER: "http://a"})
        await response.prepare(request)
        for index, part in enumerate(parts):
            if index and gate:
                await gate.wait()
            await response.write(b"data: " + json.dumps(part).encode() + b"\n\n")
        await response.write(b"data: [DONE]\n\n")
        return response

    return handler


def answering(body: object, *, status: int = 200) -> Handler:
    async def handler(request: web.Request) -> web.StreamResponse:
        return web.json_response(body, status=status)

    return handler


def delta(text: str | None = None, *, finish: str | None = None, **more: str) -> dict[str, object]:
    return {"choices": [{"index": 0, "delta": {"content": text, **more}, "finish_reason": finish}]}


async def test_a_streamed_answer_is_timed_to_its_first_chunk_and_to_its_end() -> None:
    parts = [delta("", role="assistant"), delta("he"), delta("llo", finish="length"), {"choices": [], "usage": USAGE}]
    gate = asyncio.Event()
    async with serving(streaming(*parts, gate=gate)) as client:
        asyncio.get_running_loop().call_later(0.2, gate.set)
        reply = await client.ask(CHAT_PATH, b"{}")
    assert (reply.text, reply.replica) == ("hello", "http://a")
    assert (reply.prompt_tokens, reply.cached_tokens, reply.completion_tokens) == (12, 6, 2)
    assert reply.ttft is not None
    assert reply.ttft + 0.15 < reply.elapsed


async def test_a_whole_answer_has_no_time_to_first_token() -> None:
    answer = {"choices": [{"text": "hi", "finish_reason": "stop"}], "usage": USAGE}
    async with serving(answering(answer)) as client:
        reply = await client.ask(COMPLETIONS_PATH, b"{}")
    assert (reply.text, reply.ttft, reply.replica) == ("hi", None, None)


async def test_an_answer_of_no_text_still_has_a_first_token() -> None:
    async with serving(streaming(delta(""), delta("", finish="length"), {"choices": [], "usage": USAGE})) as client:
        assert (await client.ask(CHAT_PATH, b"{}")).ttft is not None


@pytest.mark.parametrize(
    ("handler", "reason"),
    [
        (answering({"error": {"message": "too long"}}, status=400), r"status 400: .*too long"),
        (streaming(delta("a"), {"error": {"message": "engine died"}}), "error in the answer: .*engine died"),
        (streaming(delta("a"), {"choices": [], "usage": USAGE}), "without a finish_reason"),
        (streaming(delta("a", finish="stop")), "no usage"),
        (streaming(["not", "an", "object"]), "cannot be read"),
        (answering({"choices": [{"text": "a", "finish_reason": "stop"}]}), "no usage"),
    ],
)
async def test_an_answer_that_breaks_its_promise_is_an_error(handler: Handler, reason: str) -> None:
    async with serving(handler) as client:
        with pytest.raises(RequestError, match=reason) as caught:
            await client.ask(CHAT_PATH, b"{}")
    assert "\n" not in str(caught.value)


async def test_a_connection_cut_in_the_middle_is_an_error() -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b"data: " + json.dumps(delta("a")).encode() + b"\n\n")
        assert request.transport is not None
        request.transport.abort()
        return response

    async with serving(handler) as client:
        with pytest.raises(RequestError, match=CHAT_PATH):
            await client.ask(CHAT_PATH, b"{}")


async def test_a_failure_is_entered_and_counts_as_done() -> None:
    done: list[None] = []
    async with serving(answering({"error": "no"}, status=503)) as client:
        ask = Ask(client, Tally(), lambda: done.append(None))
        assert await ask(CHAT_PATH, b"{}") is None
    (failure,) = ask.tally.failures
    assert failure.endswith(f'{CHAT_PATH}: status 503: {{"error": "no"}}')
    assert len(done) == 1


async def test_the_last_request_of_each_replica_that_fills_more_than_a_block_is_kept() -> None:
    parts = [delta("a", finish="stop"), {"choices": [], "usage": USAGE}]
    async with serving(streaming(*parts)) as client:
        asks = [Ask(client, Tally(width=width), lambda: None) for width in (11, 12)]
        for ask in asks:
            for body in (b"{}", b'{"n":1}'):
                await ask(CHAT_PATH, body)
    assert asks[0].tally.last_asked["http://a"].body == b'{"n":1}'
    assert asks[1].tally.last_asked == {}
    assert [len(ask.tally.of("http://a")) for ask in asks] == [2, 2]
