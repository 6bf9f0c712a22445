"""Models of files behind the real server: their own tokenizer, template and end tokens, and a router that agrees."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from engine_client import Client
from engine_process import EVENTS, SMALL, EngineProcess
from patience import PATIENCE
from published_model import VOCAB_SIZE, publish_folder, publish_gguf
from small_tokenizer import trained

from bench.children import ChildGroup
from bench.router_view import RouterView
from router.choice.local_tokenizers import TokenizerSource
from router.choice.remote_tokenizer import RemoteTokenizer
from router.choice.texts import Chat, Text
from router.choice.tokenization import Tokenization

TEXT = "Füße in Brussels: 123 + 45 🎉\n\n7 猫"
CONVERSATION = [{"role": "user", "content": TEXT}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return publish_folder(tmp_path_factory.mktemp("models") / "folder")


@pytest.fixture(scope="module", params=["folder", "gguf"])
def path(request: pytest.FixtureRequest, folder: Path) -> Path:
    return folder if request.param == "folder" else publish_gguf(folder.with_name("model.gguf"), folder)


@pytest.fixture(scope="module")
def engine(path: Path) -> Iterator[EngineProcess]:
    flags = ("--model-path", str(path), "--served-model-name", "small", "--rank-backend", "threads")
    with EngineProcess(*flags, *SMALL, "--max-total-tokens", "3000", "--kv-events-config", EVENTS) as process:
        yield process.wait_ready()


@pytest.fixture
def client(http: aiohttp.ClientSession, engine: EngineProcess) -> Client:
    return Client(http, engine.url)


async def test_the_server_says_whose_tokenizer_it_has(client: Client, path: Path) -> None:
    _, info = await client.get("/server_info")
    assert info["tokenizer_path"] == str(path)
    assert (info["model_path"], info["served_model_name"]) == (str(path), "small")
    assert (info["vocab_size"], info["context_length"], info["dtype"]) == (VOCAB_SIZE, 512, "auto")
    _, models = await client.get("/v1/models")
    assert [(model["id"], model["max_model_len"]) for model in models["data"]] == [("small", 512)]


async def test_tokenize_and_detokenize_are_the_model_s_own(client: Client) -> None:
    ids = trained().encode(TEXT).ids
    assert (await client.post("/tokenize", {"prompt": TEXT}))[1]["tokens"] == ids
    assert (await client.post("/detokenize", {"tokens": [1, *ids, 2]}))[1]["text"] == TEXT
    _, opened = await client.post("/tokenize", {"messages": CONVERSATION})
    _, closed = await client.post("/tokenize", {"messages": CONVERSATION, "add_generation_prompt": False})
    assert opened["tokens"][: closed["count"]] == closed["tokens"]
    assert opened["count"] > closed["count"]
    asked = {"messages": CONVERSATION, "chat_template_kwargs": {"enable_thinking": False}}
    _, unthinking = await client.post("/tokenize", asked)
    assert unthinking["tokens"] == opened["tokens"] + trained().encode("<think></think>").ids


async def ids_by(tokenization: Tokenization, text: Text, sources: Sequence[TokenizerSource]) -> list[int] | None:
    tokenized = await tokenization.tokenize(text, model="small", sources=sources)
    return None if tokenized is None else list(tokenized.ids)


@pytest.mark.parametrize("length", [1, 300])
async def test_a_router_finds_the_ids_that_requests_have(client: Client, length: int) -> None:
    """Short texts and ones that are tokenized on threads; from the files where it can read them, else by asking."""
    _, info = await client.get("/server_info")
    tokenization = Tokenization(fixed=None, remote=RemoteTokenizer(client.session, timeout=30.0))
    sources = [TokenizerSource(client.url, info["tokenizer_path"])]
    text = TEXT * length
    _, asked = await client.post("/tokenize", {"prompt": text})
    assert await ids_by(tokenization, text, sources) == asked["tokens"]
    conversation = [{"role": "user", "content": text}]
    _, asked = await client.post("/tokenize", {"messages": conversation})
    chat = Chat(messages=msgspec.Raw(json.dumps(conversation).encode()))
    assert await ids_by(tokenization, chat, sources) == asked["tokens"]
    assert tokenization.misses == 0


async def test_a_chat_is_answered_in_text_of_the_model_s_tokens(client: Client) -> None:
    _, tokens = await client.post("/tokenize", {"messages": CONVERSATION})
    body = {"messages": CONVERSATION, "max_tokens": 20, "temperature": 0, "ignore_eos": True}
    _, answer = await client.post("/v1/chat/completions", body)
    assert answer["usage"]["prompt_tokens"] == tokens["count"]
    request = {"max_new_tokens": 20, "temperature": 0, "ignore_eos": True}
    _, generated = await client.post("/generate", {"input_ids": tokens["tokens"], "sampling_params": request})
    text = trained().decode(generated["output_ids"], skip_special_tokens=True)
    assert answer["choices"][0]["message"]["content"] == generated["text"] == text
    events = await client.stream("/v1/chat/completions", body)
    assert "".join(event["choices"][0]["delta"].get("content", "") for event in events) == text


async def test_the_model_s_end_token_ends_an_answer(client: Client) -> None:
    """Sampled at high temperature until one comes: 1 of 430 ids, in up to 30 answers of 120."""
    for seed in range(30):
        sampling = {"max_new_tokens": 120, "temperature": 50.0, "sampling_seed": seed}
        _, answer = await client.post("/generate", {"input_ids": [5], "sampling_params": sampling})
        if answer["meta_info"]["finish_reason"]["type"] == "stop":
            assert answer["meta_info"]["finish_reason"]["matched"] == answer["output_ids"][-1] == 2
            return
    raise AssertionError("no answer ended")


@pytest.mark.parametrize(
    ("route", "body", "param"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "critic", "content": "x"}]}, "messages"),
        ("/v1/chat/completions", {"messages": CONVERSATION, "tools": [{"type": "function"}]}, "tools"),
        ("/v1/chat/completions", {"messages": CONVERSATION, "add_generation_prompt": False}, "add_generation_prompt"),
        ("/tokenize", {"messages": CONVERSATION, "tools": [{"type": "function"}]}, "tools"),
        ("/v1/completions", {"prompt": [VOCAB_SIZE]}, "prompt"),
        ("/detokenize", {"tokens": [VOCAB_SIZE]}, "tokens"),
    ],
)
async def test_what_the_model_cannot_take_is_a_400(client: Client, route: str, body: Any, param: str) -> None:
    status, answer = await client.post(route, body)
    assert (status, answer["error"]["param"]) == (400, param)


@pytest.fixture
async def router(http: aiohttp.ClientSession, engine: EngineProcess, tmp_path: Path) -> AsyncIterator[RouterView]:
    async with ChildGroup(tmp_path) as children:
        command = [sys.executable, "-m", "router", "--replica", engine.url, "--port", "0"]
        child = await children.start("router", command, ready_mark="kvsteer-router ready ")
        view = RouterView(http, child.urls[0])
        await view.wait_joined(seconds=PATIENCE)
        yield view


async def matched_tokens(client: Client, body: Any) -> int:
    """What the router expects to be cached, once the engine's events have reached it."""
    async with asyncio.timeout(PATIENCE):
        while True:
            _, explained = await client.post("/explain", body)
            if explained["lanes"][0]["matched_tokens"]:
                return int(explained["lanes"][0]["matched_tokens"])


async def test_a_chat_through_the_router_is_cached_for_the_tokens_it_predicts(
    http: aiohttp.ClientSession, router: RouterView
) -> None:
    client = Client(http, router.base_url)
    body = {"model": "small", "messages": CONVERSATION, "max_tokens": 2, "temperature": 0}
    await client.post("/v1/chat/completions", body)
    matched = await matched_tokens(client, body)
    _, again = await client.post("/v1/chat/completions", body)
    prompt, width = again["usage"]["prompt_tokens"], 6
    assert matched in (prompt // width * width, (prompt - 1) // width * width)
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == (prompt - 1) // width * width
