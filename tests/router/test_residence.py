"""How long caches keep things, and what that and a queue say of what a lane will hold."""

from __future__ import annotations

import math
from random import Random

from contract.events import AllBlocksCleared, BlockRemoved, BlockStored, EventBatch
from contract.hashing import block_keys
from router.choice.candidate import Lazily
from router.choice.chooser import Chooser, Decision
from router.choice.load import LaneLoad
from router.choice.policy import POLICIES, memory_of
from router.choice.residence import MAX_LANES, MAX_SAMPLES, SAMPLE_TOKENS, YOUNG_SECONDS, Residence, Residences
from router.choice.speed import FleetSpeed, ReplicaSpeed
from router.intake.index import BlockIndex
from router.prompt import Prompt

WIDTH = 512


def use(residence: Residence, keys: list[int], held: set[int], *, now: float) -> None:
    residence.use(keys, width=WIDTH, holds=held.__contains__, now=now)


def test_a_cache_is_as_old_as_the_oldest_sample_that_it_still_holds() -> None:
    residence = Residence()
    use(residence, [1, 2], {1, 2}, now=100.0)
    use(residence, [3, 4], {2, 4}, now=150.0)
    assert residence.age(200.0) == math.inf, "nothing was dropped yet"
    use(residence, [5, 6], {4, 6}, now=200.0)
    assert residence.age(200.0) == 50.0
    use(residence, [3, 4], {4, 6}, now=260.0)
    assert residence.age(260.0) == 60.0, "what is used again is young again"


def test_what_was_only_just_sent_is_not_taken_for_dropped() -> None:
    residence = Residence()
    use(residence, [1, 2], set(), now=100.0)
    use(residence, [3, 4], set(), now=100.0 + YOUNG_SECONDS / 2)
    assert residence.age(100.0 + YOUNG_SECONDS / 2) == math.inf
    use(residence, [5, 6], set(), now=101.0 + YOUNG_SECONDS)
    assert residence.age(101.0 + YOUNG_SECONDS) < YOUNG_SECONDS


def test_samples_and_lanes_are_bounded() -> None:
    residence, residences = Residence(), Residences()
    for start in range(0, 4 * MAX_SAMPLES, 100):
        use(residence, list(range(start, start + 100)), set(range(10**6)), now=float(start))
    assert len(residence) == MAX_SAMPLES
    first = residences.of(-1)
    for lane in range(MAX_LANES):
        residences.of(lane)
    assert residences.of(-1) is not first
    assert residences.age(12345678, 0.0) == math.inf


class Lane:
    """A lane without an engine; its index, books and memory are the real ones."""

    def __init__(self, number: int, index: BlockIndex, speed: ReplicaSpeed) -> None:
        self.url = f"http://replica-{number}"
        self.dp_rank = 0
        self.load = LaneLoad()
        self.recent = memory_of("kv")
        self.speed = speed
        self.handle = index.add_lane(advertised_width=WIDTH)
        self.width: int | None = WIDTH


class Scene:
    """A fleet and its chooser, at a time that only the test moves."""

    def __init__(self, count: int, *, policy: str = "kv") -> None:
        speed = FleetSpeed()
        self.index = BlockIndex()
        self.lanes = [Lane(number, self.index, speed.replica()) for number in range(count)]
        self.chooser = Chooser(self.index, POLICIES[policy](), seed=3, now=0.0)
        self.now = 100.0

    def store(self, lane: Lane, prompt: list[int]) -> None:
        full = len(prompt) // WIDTH * WIDTH
        names = block_keys(prompt, width=WIDTH, parent=77)
        event = BlockStored(
            block_hashes=list(names), parent_block_hash=None, token_ids=prompt[:full], block_size=WIDTH, medium="GPU"
        )
        self.index.apply(lane.handle, EventBatch(ts=0.0, events=[event]))

    def drop(self, lane: Lane, prompt: list[int]) -> None:
        names = list(block_keys(prompt, width=WIDTH, parent=77))
        self.index.apply(lane.handle, EventBatch(ts=0.0, events=[BlockRemoved(block_hashes=names)]))

    def choose(self, prompt: list[int], lanes: list[Lane] | None = None) -> Decision[Lane]:
        return self.chooser.choose(
            Prompt(prompt[:-1]), prompt_tokens=len(prompt), lanes=lanes or self.lanes, now=self.now
        )


def tokens(count: int, *, seed: int) -> list[int]:
    random = Random(seed)
    return [random.randrange(250) for _ in range(count)]


def full_lane(scene: Scene, kept: list[int]) -> Lane:
    """The first lane: it holds ``kept``, used just now, and has dropped something before."""
    lane, old = scene.lanes[0], tokens(2 * SAMPLE_TOKENS, seed=99)
    scene.store(lane, old)
    scene.choose([*old, 1], [lane])
    scene.now += 2 * YOUNG_SECONDS
    scene.drop(lane, old)
    scene.store(lane, kept)
    scene.choose([*kept, 1], [lane])
    return lane


def test_what_waits_at_a_full_lane_pushes_out_what_it_holds() -> None:
    """Half of a cache's tokens wait there uncached: half of what it holds will stay until the prompt's turn."""
    scene, kept = Scene(1), tokens(8 * WIDTH, seed=1)
    lane = full_lane(scene, kept)
    assert scene.choose([*kept, 1]).chosen.uncached_tokens == 1
    lane.load.book(4 * WIDTH, now=scene.now)
    judged = scene.choose([*kept, 1]).chosen
    assert judged.uncached_tokens == 1 + 4 * WIDTH
    assert (judged.matched_tokens, judged.pending_tokens) == (8 * WIDTH, 0), "the prediction is what is held now"


def test_a_cache_that_has_dropped_nothing_has_room_for_what_waits() -> None:
    scene, kept = Scene(1), tokens(8 * WIDTH, seed=1)
    scene.store(scene.lanes[0], kept)
    scene.lanes[0].load.book(4 * WIDTH, now=scene.now)
    assert scene.choose([*kept, 1]).chosen.uncached_tokens == 1


def test_between_idle_lanes_the_one_that_keeps_things_longest_is_chosen() -> None:
    scene = Scene(2)
    full_lane(scene, tokens(8 * WIDTH, seed=1))
    assert {scene.choose(tokens(3000, seed=number)).chosen.lane.url for number in range(10, 20)} == {"http://replica-1"}


def test_in_a_large_fleet_holders_and_idle_lanes_are_looked_at_and_no_others() -> None:
    scene, prompt = Scene(100), tokens(8 * WIDTH, seed=1)
    for lane in scene.lanes[:90]:
        lane.load.book(50_000, now=scene.now)
    holder = scene.lanes[95]
    scene.store(holder, prompt)
    decision = scene.choose([*prompt, 1])
    assert decision.chosen.lane is holder
    assert 10 <= len(decision.considered) < 30
    assert set(scene.lanes[90:]) <= {considered.lane for considered in decision.considered}


def test_siblings_stay_together_in_a_large_fleet_too() -> None:
    """Nothing is announced: the lane that the first was sent to is among those that are looked at."""
    scene, shared, chosen = Scene(300), tokens(20 * WIDTH, seed=1), set()
    for number in range(6):
        prompt = [*shared, *tokens(50, seed=number)]
        lane = scene.choose(prompt).chosen.lane
        lane.recent.remember(Prompt(prompt[:-1]).keys(width=WIDTH), width=WIDTH, now=scene.now)
        lane.load.book(100, now=scene.now)
        chosen.add(lane.url)
    assert len(chosen) == 1


def test_idle_lanes_of_a_large_fleet_all_get_a_share() -> None:
    scene = Scene(40)
    urls = {scene.choose(tokens(600, seed=number)).chosen.lane.url for number in range(400)}
    assert len(urls) == 40


def test_turns_are_taken_in_a_large_fleet_too() -> None:
    scene = Scene(50, policy="round_robin")
    turns = [scene.choose(tokens(600, seed=number)).chosen.lane.url for number in range(50)]
    assert turns == [lane.url for lane in scene.lanes]


def test_items_are_made_once_when_they_are_looked_at() -> None:
    made: list[int] = []
    items = Lazily(3, lambda place: made.append(place) or 10 * place)  # type: ignore[func-returns-value]
    assert (len(items), made) == (3, [])
    assert items[2] == items[2] == 20
    assert made == [2]
    assert list(items[1:]) == [10, 20]


def test_the_index_tells_of_one_key_and_of_all_that_is_held() -> None:
    scene, prompt = Scene(2), tokens(3 * WIDTH, seed=1)
    scene.store(scene.lanes[0], prompt)
    key = Prompt(prompt).keys(width=WIDTH)[2]
    assert [scene.index.holds(lane.handle, key) for lane in scene.lanes] == [True, False]
    assert [scene.index.gpu_tokens(lane.handle) for lane in scene.lanes] == [3 * WIDTH, 0]
    scene.index.apply(scene.lanes[0].handle, EventBatch(ts=0.0, events=[AllBlocksCleared()]))
    assert not scene.index.holds(scene.lanes[0].handle, key)
    assert scene.index.gpu_tokens(scene.lanes[0].handle) == 0
    assert not scene.index.holds(987, key)
