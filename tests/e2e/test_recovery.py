"""Engines and routers come and go, batches are lost: each time the index ends equal to the engine's truth."""

from __future__ import annotations

import random

import pytest
from e2e_fleet import EnginePorts, Fleet, eventually
from lossy_front import lossy_front

SIZES = ("--page-size", "3", "--dcp-size", "2", "--tp-size", "2")
SMALL_CACHE = (*SIZES, "--max-total-tokens", "240")
WIDTH = 6


def prompts(seed: int, count: int) -> list[list[int]]:
    """Prompts that share prefixes now and then, and more tokens than a small cache holds."""
    print(f"seed {seed}")
    rng = random.Random(seed)
    shared = [rng.randrange(256) for _ in range(30)]
    return [
        shared[: rng.randrange(0, 30)] + [rng.randrange(256) for _ in range(rng.randrange(20, 60))]
        for _ in range(count)
    ]


async def test_a_router_that_starts_late_learns_what_warm_engines_hold(fleet: Fleet) -> None:
    ports = EnginePorts.free()
    await fleet.start_engine(ports, *SMALL_CACHE)
    for ids in prompts(1, 20):
        await fleet.generate(ports.url, ids)
    for _ in range(2):  # and so does the router that takes the first one's place
        child, router = await fleet.start_router([ports.url])
        truth = await fleet.agreement(router, ports.url)
        assert truth["blocks"]
        await fleet.group.stop(child)
        for ids in prompts(2, 5):
            await fleet.generate(ports.url, ids)


async def test_what_left_the_replay_buffer_is_told_by_a_snapshot(fleet: Fleet) -> None:
    ports = EnginePorts.free()
    await fleet.start_engine(ports, *SMALL_CACHE, buffer_steps=3)
    for ids in prompts(3, 20):
        await fleet.generate(ports.url, ids)
    _, router = await fleet.start_router([ports.url])
    truth = await fleet.agreement(router, ports.url)
    assert truth["last_seq"] > 10
    assert len(truth["blocks"]) > 10


@pytest.mark.parametrize("how", ["kill", "terminate"])
async def test_an_engine_that_restarts_behind_its_endpoint_starts_from_nothing(fleet: Fleet, how: str) -> None:
    ports, (old, new) = EnginePorts.free(), prompts(4, 2)
    engine = await fleet.start_engine(ports, *SIZES)
    _, router = await fleet.start_router([ports.url])
    await fleet.generate(router.base_url, old)
    assert (await fleet.agreement(router, ports.url))["blocks"]
    engine.stopping = True
    getattr(engine.process, how)()
    await engine.process.wait()
    await fleet.start_engine(ports, *SIZES)
    assert (await fleet.agreement(router, ports.url))["blocks"] == {}
    assert (await matched(fleet, router.base_url, old)) == 0
    await fleet.generate(ports.url, new)
    assert (await fleet.agreement(router, ports.url))["blocks"]
    assert (await matched(fleet, router.base_url, new)) == (len(new) - 1) // WIDTH * WIDTH


async def test_an_engine_that_restarts_with_another_width_is_followed(fleet: Fleet) -> None:
    ports, ids = EnginePorts.free(), list(range(64))
    engine = await fleet.start_engine(ports, *SIZES)
    _, router = await fleet.start_router([ports.url])
    await fleet.generate(router.base_url, ids)
    await fleet.agreement(router, ports.url)
    await fleet.group.stop(engine)
    await fleet.start_engine(ports, "--page-size", "16")
    await fleet.generate(ports.url, ids)
    widths: list[tuple[int | None, int | None]] = []

    async def both_new() -> bool:
        lanes = (await router.fleet()).replicas[0].lanes
        widths[:] = [(lane.advertised_block_size, lane.emitted_block_size) for lane in lanes]
        return widths == [(16, 16)]

    await eventually(both_new, lambda: f"the router still sees widths {widths}")
    await fleet.agreement(router, ports.url)
    assert (await matched(fleet, router.base_url, ids)) == 48


async def test_a_lost_batch_is_replayed_in_its_place(fleet: Fleet) -> None:
    ports = EnginePorts.free()
    await fleet.start_engine(ports, *SMALL_CACHE)
    async with lossy_front(ports, lost={3, 4, 9}) as front:
        _, router = await fleet.start_router([front])
        for ids in prompts(5, 20):
            await fleet.generate(ports.url, ids)
        truth = await fleet.agreement(router, ports.url, known_as=front)
        lane = (await fleet.get(f"{router.base_url}/replicas"))["replicas"][0]["lanes"][0]
    assert truth["last_seq"] == lane["last_seq"] > 9
    assert (lane["gaps"] in (1, 2), lane["lost"]) == (True, 0)  # one, where the second opens before the first is closed
    assert lane["replayed"] >= 3


async def matched(fleet: Fleet, router_url: str, ids: list[int]) -> int:
    _, answer = await fleet.post(f"{router_url}/explain", {"input_ids": ids})
    tokens: int = answer["lanes"][0]["matched_tokens"]
    return tokens
