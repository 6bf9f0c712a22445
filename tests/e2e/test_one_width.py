"""The width an engine advertises, the width on its wire and the width the router hashes at are one number."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Sequence
from typing import Any

import pytest
import zmq
import zmq.asyncio
from e2e_fleet import EnginePorts, Fleet
from patience import PATIENCE

from contract.events import BlockStored, decode_batch
from contract.framing import parse_replay_reply, replay_request
from contract.geometry import block_width

GEOMETRIES = list(itertools.product((1, 3, 16), (1, 2, 4)))


async def widths_on_the_wire(endpoint: str) -> set[int]:
    """The block_size of every store an engine has published, asked of its replay endpoint."""
    context = zmq.asyncio.Context()
    try:
        dealer = context.socket(zmq.DEALER)
        dealer.linger = 0
        dealer.connect(endpoint)
        await dealer.send_multipart(replay_request(0))
        widths = set()
        async with asyncio.timeout(PATIENCE):
            while (frame := parse_replay_reply(await dealer.recv_multipart())) is not None:
                events = decode_batch(frame.payload).events
                widths |= {event.block_size for event in events if isinstance(event, BlockStored)}
        return widths
    finally:
        context.destroy(linger=0)


async def explained(fleet: Fleet, router_url: str, ids: list[int], url: str) -> dict[str, Any]:
    status, answer = await fleet.post(f"{router_url}/explain", {"input_ids": ids})
    assert status == 200, answer
    lane: dict[str, Any] = next(lane for lane in answer["lanes"] if lane["url"] == url)
    return lane


@pytest.mark.parametrize(("model", "geometries"), [("tiny", GEOMETRIES[::2]), ("sim", GEOMETRIES)], ids=["tiny", "sim"])
async def test_a_repeated_prompt_is_cached_for_exactly_the_tokens_predicted(
    fleet: Fleet, model: str, geometries: Sequence[tuple[int, int]]
) -> None:
    """One router in front of replicas of as many geometries, each with a width of its own."""
    seed = 11
    print(f"seed {seed}")
    rng = random.Random(seed)
    ports = [EnginePorts.free() for _ in geometries]
    await asyncio.gather(
        *(start(fleet, port, geometry, model) for port, geometry in zip(ports, geometries, strict=True))
    )
    _, router = await fleet.start_router([port.url for port in ports])
    for port, (page_size, dcp_size) in zip(ports, geometries, strict=True):
        width = block_width(page_size=page_size, dcp_size=dcp_size)
        descriptor = (await fleet.get(f"{port.url}/server_info"))["kv_events"]
        assert descriptor["block_size"] == width
        for length in (width - 1, width, width + 1, 5 * width, 5 * width + rng.randrange(1, width + 1)):
            ids = [rng.randrange(256) for _ in range(max(length, 1))]
            assert (await fleet.generate(port.url, ids))["cached_tokens"] == 0
            await fleet.agreement(router, port.url)
            lane = await explained(fleet, router.base_url, ids, port.url)
            assert lane["block_size"] == width
            repeated = await fleet.generate(port.url, ids)
            assert repeated["cached_tokens"] == lane["matched_tokens"] == (len(ids) - 1) // width * width
        assert await widths_on_the_wire(f"tcp://127.0.0.1:{port.replay}") == {width}
    view = await router.fleet()
    assert all(lane.advertised_block_size == lane.emitted_block_size for r in view.replicas for lane in r.lanes)
    assert not [fault for replica in view.replicas for fault in replica.faults]


async def start(fleet: Fleet, ports: EnginePorts, geometry: tuple[int, int], model: str) -> None:
    page_size, dcp_size = geometry
    sizes = ["--page-size", str(page_size), "--tp-size", str(dcp_size), "--dcp-size", str(dcp_size)]
    await fleet.start_engine(ports, *sizes, "--max-total-tokens", "4096", model=model)


async def test_what_the_router_predicts_is_what_the_engines_report(fleet: Fleet) -> None:
    """Through the router: sums of predicted and of reported hit tokens are equal, replica by replica."""
    ports = [EnginePorts.free() for _ in range(2)]
    for port in ports:
        await fleet.start_engine(port, "--page-size", "3", "--tp-size", "2", "--dcp-size", "2", model="tiny")
    _, router = await fleet.start_router([port.url for port in ports])
    shared = list(range(100, 140))
    for turn in range(8):
        await fleet.generate(router.base_url, shared + [turn] * 20)
        for port in ports:
            await fleet.agreement(router, port.url)
    view = await router.fleet()
    assert sum(replica.tokens.predicted_hit for replica in view.replicas) > 0
    for replica in view.replicas:
        assert replica.tokens.predicted_hit == replica.tokens.reported_hit
