"""Bad input over real HTTP: the OpenAI error shape, the right status, and an engine that goes on."""

from __future__ import annotations

import gzip
import json
from typing import Any

import aiohttp
import pytest
from connections import connect
from engine_client import Client
from engine_process import EngineProcess
from patience import in_time

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
MIB = 1024 * 1024


def assert_refused(answer: Any, *, param: str | None = None, says: str = "") -> None:
    error = answer["error"]
    assert set(answer) == {"error"}
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    assert "\n" not in error["message"]
    assert says in error["message"]
    assert error["param"] == param or param is None


@pytest.mark.parametrize(
    ("body", "param", "says"),
    [
        ({}, "prompt", "prompt"),
        ({"prompt": ""}, "prompt", "prompt is empty"),
        ({"prompt": []}, "prompt", "prompt is empty"),
        ({"prompt": [""]}, "prompt", "prompt is empty"),
        ({"prompt": [[]]}, "prompt", "prompt is empty"),
        ({"prompt": None}, "prompt", "Expected"),
        ({"prompt": {"a": 1}}, "prompt", "Expected"),
        ({"prompt": [1, "a"]}, "prompt", "mixes"),
        ({"prompt": [1, [1]]}, "prompt", "mixes"),
        ({"prompt": [1.5]}, "prompt", "Expected"),
        ({"prompt": [1.0]}, "prompt", "Expected"),
        ({"prompt": [True]}, "prompt", "Expected"),
        ({"prompt": [-1]}, "prompt", "token id -1 is outside the vocabulary [0, 4294967296)"),
        ({"prompt": [0, 2**32]}, "prompt", "token id 4294967296 is outside the vocabulary [0, 4294967296)"),
        ({"prompt": [[1], [10**30]]}, "prompt", "outside the vocabulary"),
        ({"prompt": "a", "max_tokens": 0}, "max_tokens", ">= 1"),
        ({"prompt": "a", "max_tokens": "many"}, "max_tokens", "Expected `int"),
        (
            {"prompt": "a", "max_tokens": 20_000},
            "max_tokens",
            "the prompt has 2 tokens and max_tokens is 20000: 20002 of",
        ),
        ({"prompt": "a" * 16384}, "prompt", "the prompt has 16385 tokens, at most 16383"),
        ({"prompt": "a", "temperature": -1}, "temperature", ">= 0"),
        ({"prompt": "a", "top_p": 0}, "top_p", "> 0"),
        ({"prompt": "a", "top_p": 1.1}, "top_p", "<= 1"),
        ({"prompt": "a", "top_k": -2}, "top_k", ">= -1"),
        ({"prompt": "a", "seed": 2**70}, "seed", "<="),
        ({"prompt": "a", "stop": [""]}, "stop", "length >= 1"),
        ({"prompt": "a", "stop": ["x"] * 17}, "stop", "length <= 16"),
        ({"prompt": "a", "n": 2}, "n", "n 2 is not supported"),
        ({"prompt": "a", "best_of": 3}, "best_of", "best_of 3 is not supported"),
        ({"prompt": "a", "echo": True}, "echo", "echo True is not supported"),
        ({"prompt": "a", "logprobs": 0}, "logprobs", "logprobs are not supported"),
        ({"prompt": "a", "suffix": "b"}, "suffix", "suffix 'b' is not supported"),
        ({"prompt": "a", "presence_penalty": 0.5}, "presence_penalty", "is not supported"),
        ({"prompt": "a", "logit_bias": {"1": 2}}, "logit_bias", "is not supported"),
        ({"prompt": "a", "stream": 1}, "stream", "Expected `bool"),
        ({"prompt": "a", "routed_dp_rank": -1}, "routed_dp_rank", ">= 0"),
        ({"prompt": "a", "routed_dp_rank": 2}, None, "'2' is not a data-parallel rank in [0, 2)"),
        ({"prompt": "a", "cache_salt": ""}, "cache_salt", "length >= 1"),
        ({"prompt": ["a", "b"], "cache_salt": ["x"]}, "cache_salt", "1 entries for 2 prompts"),
        ({"prompt": ["a"] * 3000}, None, "3000 prompts in one request, at most 2176"),
    ],
)
async def test_a_completion_that_cannot_be_answered_is_a_400(
    client: Client, body: Any, param: str | None, says: str
) -> None:
    status, answer = await client.post(COMPLETIONS, body)
    assert status == 400
    assert_refused(answer, param=param, says=says)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"messages": []},
        {"messages": "hello"},
        {"messages": [{"role": "nobody", "content": "x"}]},
        {"messages": [{"role": "user", "content": 1}]},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
        {"messages": [{"role": "user", "content": "x"}], "tools": [{"type": "function"}]},
        {"messages": [{"role": "user", "content": "x"}], "response_format": {"type": "json_object"}},
        {"messages": [{"role": "user", "content": "x"}], "logprobs": True},
        {"messages": [{"role": "user", "content": "x" * 16384}]},
        {"messages": [{"role": "user", "content": "x"}], "rid": ["a", "b"]},
    ],
)
async def test_a_chat_that_cannot_be_answered_is_a_400(client: Client, body: Any) -> None:
    status, answer = await client.post(CHAT, body)
    assert status == 400
    assert_refused(answer)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"[1]",
        b'"x"',
        b"null",
        b'{"prompt":"a"} x',
        b'{"prompt":NaN}',
        b'{"prompt":"\xff"}',
        b'{"prompt":"\\ud800"}',
        b'{"prompt":"a","x":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ],
    ids=lambda raw: repr(raw[:24]),
)
@pytest.mark.parametrize("path", [COMPLETIONS, CHAT, "/generate", "/tokenize", "/detokenize"])
async def test_what_is_not_json_of_the_right_kind_is_a_400(client: Client, path: str, raw: bytes) -> None:
    status, answer = await client.post(path, raw)
    assert status == 400
    assert_refused(answer)


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT, "/tokenize", "/detokenize"])
async def test_an_unknown_model_is_a_404(client: Client, path: str) -> None:
    body = {"model": "gpt", "prompt": "a", "messages": [{"role": "user", "content": "x"}], "tokens": [1]}
    status, answer = await client.post(path, body)
    assert status == 404
    assert_refused(answer, param="model", says="model 'gpt' is not served here, 'sim' is")
    assert answer["error"]["code"] == "model_not_found"


async def test_an_unknown_route_is_a_404(client: Client) -> None:
    status, answer = await client.post("/v1/embeddings", {})
    assert status == 404
    assert_refused(answer, says="/v1/embeddings")


async def test_a_wrong_method_is_a_405_that_names_the_right_one(client: Client, http: aiohttp.ClientSession) -> None:
    async with http.get(client.url + COMPLETIONS) as response:
        assert response.status == 405
        assert response.headers["Allow"] == "POST"
        assert_refused(await response.json(), says="takes POST, not GET")


async def test_a_body_that_says_it_is_too_large_is_refused_unread(client: Client) -> None:
    """Only the head is sent: the answer must not wait for 40 MiB."""
    reader, writer = await connect(client.url)
    writer.write(f"POST {COMPLETIONS} HTTP/1.1\r\nHost: x\r\nContent-Length: {40 * MIB}\r\n\r\n".encode())
    head = await in_time(reader.readuntil(b"\r\n\r\n"))
    writer.close()
    assert head.startswith(b"HTTP/1.1 413 ")


async def test_a_body_that_turns_out_too_large_is_a_413(client: Client, http: aiohttp.ClientSession) -> None:
    async def chunks() -> Any:
        for _ in range(33):
            yield b" " * MIB

    async with http.post(client.url + COMPLETIONS, data=chunks()) as response:
        assert response.status == 413
        assert_refused(await response.json(), says=f"larger than {32 * MIB} bytes")


async def test_a_body_that_grows_when_unpacked_is_a_413(client: Client, http: aiohttp.ClientSession) -> None:
    packed = gzip.compress(b" " * (33 * MIB), compresslevel=1)
    async with http.post(client.url + COMPLETIONS, data=packed, headers={"Content-Encoding": "gzip"}) as response:
        assert response.status == 413


async def test_a_body_that_is_not_packed_as_it_says_is_a_400(client: Client, http: aiohttp.ClientSession) -> None:
    packing = {"Content-Encoding": "gzip"}
    async with http.post(client.url + COMPLETIONS, data=b'{"prompt": "a"}', headers=packing) as response:
        assert response.status == 400
        assert_refused(await response.json(), says="the body cannot be read")


async def test_a_large_prompt_below_the_limit_is_read(client: Client) -> None:
    body = json.dumps({"prompt": "a" * (8 * MIB)}).encode()
    status, answer = await client.post(COMPLETIONS, body)
    assert status == 400
    assert_refused(answer, says=f"the prompt has {8 * MIB + 1} tokens")


@pytest.mark.parametrize("rank", ["2", "-1", "one", "1.0", "", " 1", "٣", "9" * 40])
@pytest.mark.parametrize("path", [COMPLETIONS, CHAT, "/generate"])
async def test_a_rank_header_that_names_no_rank_is_a_400(client: Client, path: str, rank: str) -> None:
    body = {"prompt": "a", "text": "a", "messages": [{"role": "user", "content": "x"}]}
    status, answer = await client.post(path, body, X_Data_Parallel_Rank=rank)
    if rank.strip() == "1":  # white space around a header's value is no part of it
        assert status == 200
        return
    assert status == 400
    assert_refused(answer, says="is not a data-parallel rank in [0, 2)")


async def test_after_many_bad_requests_a_good_one_passes(client: Client) -> None:
    for _ in range(25):
        assert (await client.post(COMPLETIONS, {"prompt": [-1]}))[0] == 400
    assert (await client.post(COMPLETIONS, {"prompt": "good", "max_tokens": 1}))[0] == 200


async def test_garbage_on_the_socket_does_not_hurt_others(client: Client, sim: EngineProcess) -> None:
    for garbage in (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\x16\x03\x01" + bytes(200), b"GET\r\n\r\n"):
        reader, writer = await connect(client.url)
        writer.write(garbage)
        writer.write_eof()
        await in_time(reader.read())
        writer.close()
    assert (await client.get("/health"))[0] == 200
    assert "Traceback" not in sim.stderr
