"""Choice and load (section L).

First through sockets, by a real router; then the real chooser over lanes whose events, books and speeds are what a test
says, for what would take a socket too long to show.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
from aiohttp import web
from fake_engine import Answer, FakeEngine, answer_at_once, stored
from lane_stub import LaneStub
from patience import until
from router_stage import RouterClient, Stage

from router.choice.chooser import Chooser, Decision
from router.choice.load import Booking
from router.choice.memory import Remembered
from router.choice.policy import APPROX, POLICIES
from router.choice.speed import FleetSpeed
from router.intake.index import BlockIndex
from router.prompt import Prompt

WIDTH = 6
PACE = 1 / 8000


def tokens(count: int, *, seed: int) -> list[int]:
    random = Random(seed)
    return [random.randrange(250) for _ in range(count)]


async def publishing(stage: Stage, count: int) -> list[FakeEngine]:
    engines = []
    for _ in range(count):
        engine = FakeEngine(width=WIDTH)
        engine.publish_on()
        engines.append(await stage.engine(engine))
    return engines


def asked(engines: Sequence[FakeEngine]) -> list[int]:
    return [len(engine.asked) for engine in engines]


async def all_at_once(router: RouterClient, engines: Sequence[FakeEngine], prompts: Sequence[list[int]]) -> list[int]:
    """How many requests each engine gets of prompts that come together, none answered before all are there."""
    for engine in engines:
        engine.hold.clear()
    asking = [asyncio.create_task(router.complete(prompt)) for prompt in prompts]
    await until(lambda: sum(asked(engines)) == len(prompts), "all are with engines")
    spread = asked(engines)
    for engine in engines:
        engine.hold.set()
    await asyncio.gather(*asking)
    return spread


@pytest.mark.fault("L1")
@pytest.mark.parametrize("policy", ["kv", APPROX])
async def test_idle_replicas_all_get_a_share_of_unique_prompts(stage: Stage, policy: str) -> None:
    """Four idle replicas, forty unique prompts one after the other -> every replica gets some."""
    engines = await publishing(stage, 4)
    router = await stage.router(*engines, policy=policy)
    for number in range(40):
        await router.raw("/v1/completions", {"prompt": tokens(100, seed=number), "stream": number % 2 == 0})
    assert min(asked(engines)) > 0, asked(engines)
    assert sum(asked(engines)) == 40


@pytest.mark.fault("L4")
async def test_a_hot_prefix_spreads_under_load(stage: Stage) -> None:
    """A hundred requests at once share 2,000 tokens -> several of eight replicas get them, and none most of them."""
    engines = await publishing(stage, 8)
    router = await stage.router(*engines)
    shared = tokens(2000, seed=1)
    prompts = [[*shared, *tokens(100, seed=100 + number)] for number in range(100)]
    spread = await all_at_once(router, engines, prompts)
    assert max(spread) < 60, spread
    assert sum(count > 0 for count in spread) >= 3, spread


@pytest.mark.fault("L5")
async def test_a_cold_request_goes_to_the_idle_replica_whatever_it_holds(stage: Stage) -> None:
    """A busy with a small cache, B idle with a large one, a prompt neither holds -> B."""
    busy, idle = await publishing(stage, 2)
    router = await stage.router(busy, idle)
    small, large = tokens(60, seed=1), tokens(6000, seed=2)
    busy.publish(stored(small, width=WIDTH))
    idle.publish(stored(large, width=WIDTH))
    await router.until_matched(small, {busy.url: 54, idle.url: 0})
    await router.until_matched(large, {busy.url: 0, idle.url: 5994})
    busy.hold.clear()
    pinned = {"X-KVSteer-Pin-Replica": busy.url}
    running = asyncio.create_task(router.post("/v1/completions", {"prompt": tokens(3000, seed=3)}, **pinned))
    await until(lambda: busy.asked, "A is busy")
    for number in range(5):
        await router.complete(tokens(300, seed=10 + number))
    assert asked([busy, idle]) == [1, 5]
    busy.hold.set()
    await running


@pytest.mark.fault("L6")
async def test_the_holder_is_taken_among_replicas_of_equal_load(stage: Stage) -> None:
    """The same load on two replicas, one of which holds the prefix -> the holder, every time."""
    engines = await publishing(stage, 2)
    router = await stage.router(*engines)
    prompt = tokens(900, seed=1)
    engines[1].publish(stored(prompt[:600], width=WIDTH))
    await router.until_matched(prompt, {engines[0].url: 0, engines[1].url: 600})
    for engine in engines:
        engine.hold.clear()
    load = [
        asyncio.create_task(
            router.post("/v1/completions", {"prompt": tokens(300, seed=9)}, **{"X-KVSteer-Pin-Replica": engine.url})
        )
        for engine in engines
        for _ in range(3)
    ]
    await until(lambda: asked(engines) == [3, 3], "both have the same load")
    for _ in range(5):
        chosen = (await router.post("/explain", {"prompt": prompt}))[1]["chosen"]
        assert chosen["url"] == engines[1].url
    for engine in engines:
        engine.hold.set()
    await asyncio.gather(*load)


@pytest.mark.fault("L7")
@pytest.mark.parametrize("policy", ["kv", APPROX])
async def test_siblings_that_arrive_before_any_event_go_to_few_replicas(stage: Stage, policy: str) -> None:
    """Sixteen siblings of one new prefix at once, no event yet -> few of sixteen replicas."""
    engines = await publishing(stage, 16)
    router = await stage.router(*engines, policy=policy)
    shared = tokens(2000, seed=1)
    spread = await all_at_once(router, engines, [[*shared, number, 7] for number in range(16)])
    assert sum(count > 0 for count in spread) <= 4, spread


def paced(pace: float) -> Answer:
    """One prompt after the other, so many seconds a token."""
    turn = asyncio.Lock()

    async def answer(engine: FakeEngine, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        async with turn:
            await asyncio.sleep(pace * len(body["prompt"]))
        return await answer_at_once(engine, request, body)

    return answer


@pytest.mark.fault("L10")
@pytest.mark.parametrize("streamed", [False, True])
async def test_a_slow_replica_gets_its_share(stage: Stage, streamed: bool) -> None:
    """Twelve clients without pause, two replicas, one three times slower -> it gets less, but not nothing."""
    engines = await publishing(stage, 2)
    engines[0].answer, engines[1].answer = paced(6e-4), paced(2e-4)
    router, numbers = await stage.router(*engines), iter(range(60))

    async def client() -> None:
        for number in numbers:
            await router.raw("/v1/completions", {"prompt": tokens(400, seed=number), "stream": streamed})

    await asyncio.gather(*(client() for _ in range(12)))
    slow, fast = asked(engines)
    assert 0.15 <= slow / fast < 0.9, (slow, fast)  # a busy machine makes both slow, and so more alike


class Sent:
    """One request under way."""

    def __init__(self, lane: LaneStub, ahead: float, booking: Booking, remembered: Remembered) -> None:
        self.lane = lane
        self.ahead = ahead
        self.booking = booking
        self.remembered = remembered


class Scene:
    """A fleet and its chooser, at a time that only the test moves."""

    def __init__(self, count: int, *, policy: str = "kv", seed: int = 5) -> None:
        self.now = 100.0
        self.index = BlockIndex()
        self.speed = FleetSpeed()
        self.lanes = [
            LaneStub(number, self.index, self.speed.replica(), width=WIDTH, policy=policy) for number in range(count)
        ]
        believed = None if policy == APPROX else self.index
        self.chooser = Chooser(believed, POLICIES[policy](), seed=seed, now=0.0)

    def decide(self, prompt: Sequence[int]) -> Decision[LaneStub]:
        return self.chooser.explain(Prompt(prompt[:-1]), prompt_tokens=len(prompt), lanes=self.lanes, now=self.now)

    def send(self, prompt: Sequence[int]) -> Sent:
        """Choose, and book as the router does."""
        looked_up = Prompt(prompt[:-1])
        chosen = self.chooser.choose(looked_up, prompt_tokens=len(prompt), lanes=self.lanes, now=self.now).chosen
        ahead = chosen.lane.load.backlog(pace=chosen.lane.speed.line(self.now).pace, now=self.now).tokens
        booking = chosen.lane.load.book(chosen.uncached_tokens, now=self.now)
        remembered = chosen.lane.recent.remember(looked_up.keys(width=WIDTH), width=WIDTH, now=self.now)
        return Sent(chosen.lane, ahead, booking, remembered)

    def answer(self, sent: Sent, prompt: Sequence[int]) -> None:
        """The first token, the end and the events of a request, some time later."""
        self.now += 0.01
        sent.booking.prefilled(now=self.now)
        sent.remembered.prefilled(now=self.now)
        sent.booking.end()
        sent.lane.store(prompt)

    def spread(self, requests: Sequence[Sent]) -> list[int]:
        counts = Counter(sent.lane.url for sent in requests)
        return [counts[lane.url] for lane in self.lanes]


@pytest.mark.fault("L1")
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("policy", list(POLICIES))
def test_unique_prompts_one_by_one_reach_every_idle_replica(policy: str, seed: int) -> None:
    """Four idle replicas, forty unique prompts one after the other, each with a measured time -> nobody is left out."""
    scene, chance, sent = Scene(4, policy=policy, seed=seed), Random(seed), []
    for number in range(40):
        prompt = tokens(300, seed=1000 * seed + number)
        sent.append(scene.send(prompt))
        seconds = 0.01 + 300 * PACE * chance.uniform(0.6, 1.4)
        scene.answer(sent[-1], prompt)
        sent[-1].lane.speed.observe(tokens=300, seconds=seconds, now=scene.now)
    assert min(scene.spread(sent)) > 0, scene.spread(sent)


@pytest.mark.fault("L4")
@pytest.mark.parametrize("policy", ["kv", APPROX])
@pytest.mark.parametrize("at_once", [1, 16, 100])
def test_a_hot_prefix_spreads(policy: str, at_once: int) -> None:
    """A hundred requests sharing 2,000 tokens, one by one or many at once -> several of eight replicas serve them."""
    scene, shared, sent = Scene(8, policy=policy), tokens(2000, seed=1), []
    for start in range(0, 100, at_once):
        prompts = [[*shared, *tokens(60, seed=100 + number)] for number in range(start, min(start + at_once, 100))]
        together = [scene.send(prompt) for prompt in prompts]
        for request, prompt in zip(together, prompts, strict=True):
            scene.answer(request, prompt)
        sent += together
    spread = scene.spread(sent)
    assert max(spread) < 60, spread
    assert 2 <= sum(count > 0 for count in spread) <= 6, spread


@pytest.mark.fault("L5")
def test_a_large_cache_of_other_prompts_neither_draws_nor_repels_a_cold_request() -> None:
    """A busy with a small cache, B idle with a large one, a prompt neither holds -> B."""
    scene = Scene(2)
    busy, idle = scene.lanes
    busy.store(tokens(60, seed=1))
    for number in range(20):
        idle.store(tokens(600, seed=100 + number))
    busy.load.book(4000, now=scene.now)
    for number in range(8):
        assert scene.decide(tokens(500, seed=900 + number)).chosen.lane is idle


@pytest.mark.fault("L6")
@pytest.mark.parametrize("running", [0, 1, 4, 16])
def test_of_two_equally_loaded_replicas_the_holder_is_taken(running: int) -> None:
    """Two replicas with the same load, low or high, one of which holds the prefix -> the holder."""
    for holder in (0, 1):
        scene, prompt = Scene(2), tokens(900, seed=1)
        scene.lanes[holder].store(prompt[:600])
        for lane in scene.lanes:
            for _ in range(running):
                lane.load.book(200, now=scene.now).prefilled(now=scene.now)
            lane.load.book(300, now=scene.now)
        decision = scene.decide(prompt)
        assert decision.chosen.lane is scene.lanes[holder]
        assert decision.chosen.matched_tokens == 600


@pytest.mark.fault("L7")
@pytest.mark.parametrize("policy", ["kv", APPROX])
@pytest.mark.parametrize("shared_tokens", [500, 2000, 20_000])
def test_siblings_of_a_new_prefix_stay_together_before_any_event(policy: str, shared_tokens: int) -> None:
    """Sixteen requests sharing a new prefix, all at one instant, nothing announced -> few of sixteen replicas."""
    scene, shared = Scene(16, policy=policy), tokens(shared_tokens, seed=1)
    sent = [scene.send([*shared, *tokens(20, seed=100 + number)]) for number in range(16)]
    assert sum(count > 0 for count in scene.spread(sent)) <= 3, scene.spread(sent)


@pytest.mark.fault("L7")
def test_what_is_on_its_way_draws_siblings_and_is_no_predicted_hit() -> None:
    """A prompt was sent and nothing is announced -> its sibling goes there too, and zero cached tokens are promised."""
    scene, shared = Scene(4), tokens(2000, seed=1)
    first = scene.send([*shared, 1])
    decision = scene.decide([*shared, 2])
    assert decision.chosen.lane is first.lane
    assert (decision.chosen.matched_tokens, decision.chosen.pending_tokens > 1900) == (0, True)


@pytest.mark.fault("L10")
@pytest.mark.parametrize("count", [2, 4, 8])
def test_a_replica_three_times_slower_gets_a_third_of_the_others_share(count: int) -> None:
    """A fleet under load with one replica three times slower -> about a third of what each of the others gets."""
    scene, chance = Scene(count), Random(3)
    paces = [3 * PACE, *[PACE] * (count - 1)]
    free_at = dict.fromkeys((lane.url for lane in scene.lanes), scene.now)
    ends: list[tuple[float, float, Sent, int]] = []
    sent = []
    for number in range(600):
        prompt = tokens(chance.randrange(200, 1800), seed=number)
        request = scene.send(prompt)
        sent.append(request)
        place = scene.lanes.index(request.lane)
        begin = max(free_at[request.lane.url], scene.now)
        free_at[request.lane.url] = end = begin + paces[place] * len(prompt) * chance.uniform(0.9, 1.1)
        ends.append((end, scene.now, request, len(prompt)))
        scene.now += 1000 * PACE / (count - 2 / 3)  # as much as the fleet can do
        for done in [entry for entry in ends if entry[0] <= scene.now]:
            ends.remove(done)
            _, began, request, size = done
            request.booking.prefilled(now=done[0])
            request.booking.end()
            request.lane.speed.observe(tokens=request.ahead + size, seconds=done[0] - began, now=scene.now)
    spread = scene.spread(sent[100:])
    assert 0.25 <= spread[0] / (sum(spread[1:]) / (count - 1)) <= 0.5, spread
