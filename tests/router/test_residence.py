"""How long caches keep things, what that and a queue say of what a lane will hold, and what is asked for again."""

from __future__ import annotations

import math
from random import Random

import pytest
from lane_stub import LaneStub

from contract.events import AllBlocksCleared, BlockRemoved, EventBatch
from contract.hashing import block_keys
from router.choice.candidate import Lazily
from router.choice.chooser import Chooser, Decision
from router.choice.load import EngineLoad
from router.choice.policy import POLICIES
from router.choice.recurrence import MAX_KEYS, MAX_KEYS_OF_ONE, SAMPLE_TOKENS, Recurrence
from router.choice.residence import MAX_LANES, MAX_SAMPLES, YOUNG_SECONDS, Residence, Residences
from router.choice.speed import FleetSpeed
from router.intake.index import BlockIndex
from router.prompt import Prompt

WIDTH = 512


def use(residence: Residence, keys: list[int], held: set[int], *, now: float) -> None:
    residence.use(keys, holds=held.__contains__, now=now)


def test_a_cache_keeps_things_as_long_as_what_it_dropped_last_had_been_unused() -> None:
    residence = Residence(WIDTH)
    use(residence, [1, 2], {1, 2}, now=100.0)
    use(residence, [3, 4], {1, 2, 3, 4}, now=150.0)
    assert (residence.is_full, residence.age(200.0)) == (False, math.inf), "nothing was dropped yet"
    use(residence, [5, 6], {1, 3, 4, 5, 6}, now=200.0)
    assert (residence.is_full, residence.age(200.0)) == (True, 100.0), "a prompt's end goes before its begin"
    use(residence, [1], {1, 3, 4, 5, 6}, now=210.0)
    use(residence, [7], {1, 5, 6, 7}, now=260.0)
    assert residence.age(260.0) == 110.0, "1 was used again, so it is not the oldest any more"


def test_what_was_only_just_sent_is_not_taken_for_dropped() -> None:
    residence = Residence(WIDTH)
    use(residence, [1, 2], set(), now=100.0)
    use(residence, [3, 4], set(), now=100.0 + YOUNG_SECONDS / 2)
    assert not residence.is_full
    use(residence, [5, 6], set(), now=101.0 + YOUNG_SECONDS)
    assert residence.age(101.0 + YOUNG_SECONDS) == 1.0 + YOUNG_SECONDS


def test_what_waits_dooms_what_was_unused_longest_and_spares_it_when_it_waits_no_more() -> None:
    residence, held = Residence(WIDTH), {*range(1, 9)}
    use(residence, [0], {0}, now=50.0)
    use(residence, [1, 2, 3, 4], held, now=100.0)  # 0 is gone: the cache is full
    use(residence, [5, 6, 7, 8], held, now=200.0)

    def staying(waiting: int) -> list[int]:
        residence.foresee(waiting * WIDTH, holds=held.__contains__, now=300.0)
        return [residence.staying(keys, 4 * WIDTH) // WIDTH for keys in ([1, 2, 3, 4], [5, 6, 7, 8], [91, 92, 93, 94])]

    assert staying(0) == [4, 4, 4]
    assert staying(3) == [1, 4, 4], "the older prompt loses its end; of what others sent nothing is known"
    assert staying(6) == [0, 2, 4]
    assert staying(1) == [3, 4, 4]
    use(residence, [1, 2, 3, 4], held, now=310.0)
    assert staying(3) == [4, 1, 4], "used again, and so the younger one"


def test_samples_grow_coarse_and_lanes_are_bounded() -> None:
    residence, residences = Residence(WIDTH), Residences()
    everything = range(4 * MAX_SAMPLES)
    for start in range(0, len(everything), 64):
        use(residence, list(everything[start : start + 64]), {*everything}, now=float(start))
        assert len(residence) <= MAX_SAMPLES
    assert len(residence) >= MAX_SAMPLES // 2, "every eighth is left, and tells as much of a cache so large"
    for lane in range(MAX_LANES + 1):
        residences.use(lane, [lane], width=WIDTH, holds={lane}.__contains__, now=0.0)
    assert len(residences) == MAX_LANES
    assert residences.of(0, width=WIDTH) is None
    assert residences.of(1, width=WIDTH) is not None
    assert residences.of(1, width=2 * WIDTH) is None, "its width is another one now, and so are its keys"


def test_the_longer_something_lies_unused_the_less_likely_it_is_asked_for_again() -> None:
    recurrence, prompt = Recurrence(), list(range(8))
    assert recurrence.chance(0.0) == 0.0, "nothing was ever asked for again"
    for turn in range(5):
        recurrence.asked([*prompt, 100 + turn, 200 + turn], width=WIDTH, now=20.0 * turn)
    chances = [recurrence.chance(idle) for idle in (0.0, 20.0, 180.0, math.inf)]
    assert chances == pytest.approx([1.0, 0.5, 0.1, 0.0])


def test_keys_that_were_asked_for_are_bounded() -> None:
    recurrence = Recurrence()
    for start in range(0, 2 * MAX_KEYS, MAX_KEYS_OF_ONE):
        recurrence.asked(range(start, start + MAX_KEYS_OF_ONE + 500), width=1024, now=float(start))
    assert len(recurrence) == MAX_KEYS


class Scene:
    """A fleet and its chooser, at a time that only the test moves."""

    def __init__(self, count: int, *, policy: str = "kv") -> None:
        speed = FleetSpeed()
        self.index = BlockIndex()
        self.lanes = [LaneStub(number, self.index, speed.replica(), width=WIDTH) for number in range(count)]
        self.chooser = Chooser(self.index, POLICIES[policy](), seed=3, now=0.0)
        self.now = 100.0

    def drop(self, lane: LaneStub, prompt: list[int]) -> None:
        names = list(block_keys(prompt, width=WIDTH, parent=77))
        self.index.apply(lane.handle, EventBatch(ts=0.0, events=[BlockRemoved(block_hashes=names)]))

    def choose(self, prompt: list[int], lanes: list[LaneStub] | None = None) -> Decision[LaneStub]:
        return self.chooser.choose(
            Prompt(prompt[:-1]), prompt_tokens=len(prompt), lanes=lanes or self.lanes, now=self.now
        )


def tokens(count: int, *, seed: int) -> list[int]:
    random = Random(seed)
    return [random.randrange(250) for _ in range(count)]


def full_lane(scene: Scene, kept: list[int]) -> LaneStub:
    """The first lane: it holds ``kept``, used just now, and has dropped something before."""
    lane, old = scene.lanes[0], tokens(2 * SAMPLE_TOKENS, seed=99)
    lane.store(old)
    scene.choose([*old, 1], [lane])
    scene.now += 2 * YOUNG_SECONDS
    scene.drop(lane, old)
    lane.store(kept)
    scene.choose([*kept, 1], [lane])
    return lane


def test_what_waits_at_a_full_lane_pushes_out_what_it_holds() -> None:
    """Half of a cache's tokens wait there uncached, behind another request: the begin of what it holds will stay."""
    scene, kept = Scene(1), tokens(8 * WIDTH, seed=1)
    lane = full_lane(scene, kept)
    assert scene.choose([*kept, 1]).chosen.uncached_tokens == 1
    for waiting in (10, 4 * WIDTH):
        lane.load.book(waiting, now=scene.now)
    judged = scene.choose([*kept, 1]).chosen
    assert judged.uncached_tokens == 1 + 4 * WIDTH
    assert (judged.matched_tokens, judged.pending_tokens) == (8 * WIDTH, 0), "the prediction is what is held now"


def test_where_others_send_too_any_prefix_loses_its_share() -> None:
    scene, kept = Scene(1), tokens(8 * WIDTH, seed=1)
    lane = full_lane(scene, kept)
    lane.load.report(EngineLoad(running=1, waiting=0), now=scene.now)
    lane.load.book(2 * WIDTH, now=scene.now)
    assert scene.choose([*kept, 1]).chosen.uncached_tokens == 1 + 2 * WIDTH, "a quarter of what it holds"


def test_a_cache_that_has_dropped_nothing_has_room_for_what_waits() -> None:
    scene, kept = Scene(1), tokens(8 * WIDTH, seed=1)
    scene.lanes[0].store(kept)
    scene.lanes[0].load.book(4 * WIDTH, now=scene.now)
    assert scene.choose([*kept, 1]).chosen.uncached_tokens == 1


def test_between_idle_lanes_the_one_that_keeps_things_longest_is_chosen() -> None:
    """As soon as prompts were seen to come again; before that, room is worth nothing."""
    scene, kept = Scene(2), tokens(8 * WIDTH, seed=1)
    lane = full_lane(scene, kept)
    scene.now += 20.0
    scene.choose([*kept, 1], [lane])
    assert {scene.choose(tokens(3000, seed=number)).chosen.lane.url for number in range(10, 20)} == {"http://replica-1"}


def test_in_a_large_fleet_holders_and_idle_lanes_are_looked_at_and_no_others() -> None:
    scene, prompt = Scene(100), tokens(8 * WIDTH, seed=1)
    for lane in scene.lanes[:90]:
        lane.load.book(50_000, now=scene.now)
    holder = scene.lanes[95]
    holder.store(prompt)
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
    scene.lanes[0].store(prompt)
    key = Prompt(prompt).keys(width=WIDTH)[2]
    assert [scene.index.holds(lane.handle, key) for lane in scene.lanes] == [True, False]
    assert [scene.index.gpu_tokens(lane.handle) for lane in scene.lanes] == [3 * WIDTH, 0]
    scene.index.apply(scene.lanes[0].handle, EventBatch(ts=0.0, events=[AllBlocksCleared()]))
    assert not scene.index.holds(scene.lanes[0].handle, key)
    assert scene.index.gpu_tokens(scene.lanes[0].handle) == 0
    assert not scene.index.holds(987, key)
