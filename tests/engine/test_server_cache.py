"""The cache from outside: listed, flushed, and the same as what the event stream says, however late one listens."""

from __future__ import annotations

import json
from typing import Any

import aiohttp
import zmq
import zmq.asyncio
from engine_client import Client
from engine_process import EVENTS, FREE_SIM, SMALL, EngineProcess
from patience import in_time

from contract.descriptor import parse_descriptor
from contract.events import AllBlocksCleared, BlockRemoved, BlockStored, decode_batch
from contract.framing import Frame, parse_replay_reply, replay_request

COMPLETIONS = "/v1/completions"


async def replay(client: Client, start: int = 0) -> list[Frame]:
    """Every batch from ``start`` on, from the replay socket that /server_info names."""
    descriptor = parse_descriptor((await client.get("/server_info"))[1])
    assert descriptor is not None
    (lane,) = descriptor.lanes("127.0.0.1")
    with zmq.asyncio.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.linger = 0
        dealer.connect(lane.replay_endpoint)
        await dealer.send_multipart(replay_request(start))
        frames = []
        while (frame := parse_replay_reply(await in_time(dealer.recv_multipart()))) is not None:
            frames.append(frame)
    return frames


def held(frames: list[Frame]) -> set[str]:
    """Names of the blocks that are held after all these batches."""
    blocks: set[int | bytes] = set()
    for frame in frames:
        for event in decode_batch(frame.payload).events:
            match event:
                case AllBlocksCleared():
                    blocks.clear()
                case BlockStored():
                    blocks |= set(event.block_hashes)
                case BlockRemoved():
                    blocks -= set(event.block_hashes)
    return set(map(str, blocks))


async def ask(client: Client, *prompts: Any) -> None:
    for prompt in prompts:
        status, answer = await client.post(COMPLETIONS, {"prompt": prompt, "max_tokens": 8})
        assert status == 200, answer


async def test_listed_blocks_are_those_of_the_event_stream(publishing: Client) -> None:
    await ask(publishing, "one prompt of some length", "one prompt of another length", "something else")
    frames = await replay(publishing)
    _, answer = await publishing.get("/kv_blocks")
    assert answer["block_size"] == 6
    assert answer["last_seq"] == frames[-1].seq
    assert {block["hash"] for block in answer["blocks"]} == held(frames)
    assert {(block["tier"], block["copies"]) for block in answer["blocks"]} == {("GPU", 1)}


async def test_a_flush_empties_the_cache_and_says_so_on_the_stream(publishing: Client) -> None:
    await ask(publishing, "to be flushed")
    for method in (publishing.get, lambda path: publishing.session.post(publishing.url + path)):
        await ask(publishing, "to be flushed")
        answer = await method("/flush_cache")
        assert (answer[0] if isinstance(answer, tuple) else answer.status) == 200
        _, blocks = await publishing.get("/kv_blocks")
        assert blocks["blocks"] == []
        assert held(await replay(publishing)) == set()


async def test_a_listener_that_comes_too_late_for_the_log_is_told_what_is_held(http: aiohttp.ClientSession) -> None:
    config = json.dumps(json.loads(EVENTS) | {"buffer_steps": 2})
    with EngineProcess("--model-path", "sim", "--kv-events-config", config, *SMALL, *FREE_SIM) as process:
        client = Client(http, process.wait_ready().url)
        await ask(client, *(f"prompt number {index}" for index in range(8)))
        frames = await replay(client)
        _, answer = await client.get("/kv_blocks")
    assert frames[0].seq > 0
    assert frames[-1].seq == answer["last_seq"]
    assert held(frames) == {block["hash"] for block in answer["blocks"]}


async def test_two_tenants_equal_prompts_are_two_copies_of_one_name(http: aiohttp.ClientSession) -> None:
    with EngineProcess("--model-path", "sim", *SMALL, *FREE_SIM) as process:
        client = Client(http, process.wait_ready().url)
        for tenant in ("a", "b"):
            body = {"prompt": list(range(6)), "max_tokens": 1, "extra_key": tenant}
            assert (await client.post(COMPLETIONS, body))[0] == 200
        _, answer = await client.get("/kv_blocks")
    (block,) = answer["blocks"]
    assert block["copies"] == 2
    assert answer["last_seq"] == -1
