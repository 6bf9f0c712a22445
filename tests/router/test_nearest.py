"""The lanes of a large fleet that are looked at: those that a look at all of them would find."""

from __future__ import annotations

import math
from random import Random

from hypothesis import given
from hypothesis import strategies as st
from lane_stub import LaneStub

from router.choice.chooser import Chooser
from router.choice.cut import Cut
from router.choice.load import FRESH_SECONDS, EngineLoad, LaneLoad
from router.choice.memory import mark_step
from router.choice.nearest import Nearest
from router.choice.order import LOOK_SECONDS, LOOKS, RUNG, Order
from router.choice.pioneers import MAX_LANES, MAX_PREFIXES, Pioneers
from router.choice.policy import POLICIES
from router.choice.pool import Pool
from router.choice.speed import FleetSpeed
from router.intake.index import BlockIndex
from router.prompt import Prompt

WIDTH = 6
CUT = Cut(at_most=4, burden=LaneLoad.waiting_tokens, uncached_weight=5.0)
PROMPT = [7 * number % 251 for number in range(20 * mark_step(WIDTH) * WIDTH)]
NOW = 50.0


def rough_cost(lane: LaneStub, *, uncached: int) -> float:
    burden = lane.load.queued_tokens + lane.load.surplus(NOW).tokens
    rung = round(math.log(lane.speed.slowness(NOW), RUNG))
    return (burden + CUT.uncached_weight * uncached) * RUNG**rung


_fleets = st.lists(
    st.fixed_dictionaries(
        {
            "waiting": st.sampled_from([0, 0, 0, 300, 2_000, 50_000]),
            "foreign": st.sampled_from([0, 0, 4_000]),
            "blocks": st.sampled_from([0, 0, 1, 9, 9, 150]),
            "slow": st.sampled_from([1.0, 1.0, 3.0, 0.2]),
            "sent": st.booleans(),
        }
    ),
    min_size=5,
    max_size=60,
)


@given(fleet=_fleets, sharing=st.sampled_from([0.0, 0.5, 1.0]), seed=st.integers(0, 9))
def test_the_nearest_lanes_are_those_that_a_look_at_all_of_them_finds(
    fleet: list[dict[str, float]], sharing: float, seed: int
) -> None:
    """Some hold a part of the prompt each, many may hold the same part, some were sent it just now."""
    index, speed = BlockIndex(), FleetSpeed()
    lanes = [LaneStub(number, index, speed.replica(), width=WIDTH) for number in range(len(fleet))]
    pool, sent, held = Pool(lanes), [], dict.fromkeys(lanes, 0)
    pool.order(CUT, now=NOW - 2 * LOOK_SECONDS)
    for lane, wanted in zip(lanes, fleet, strict=True):
        for tokens in (1_000, 5_000, 9_000):
            lane.speed.observe(tokens=tokens, seconds=tokens * 1e-4 * wanted["slow"], now=NOW)
        if wanted["waiting"]:
            lane.load.book(int(wanted["waiting"]), now=NOW)
        if wanted["foreign"]:
            foreign = int(wanted["waiting"] + wanted["foreign"])
            lane.load.report(EngineLoad(running=2, waiting=2, waiting_tokens=foreign), now=NOW)
        held[lane] = WIDTH * int(max(wanted["blocks"], 30 if Random(seed).random() < sharing else 0))
        if held[lane]:
            lane.store(PROMPT[: held[lane]])
        sent += [lane] * int(wanted["sent"] and lane is not lanes[0])
    order = pool.order(CUT, now=NOW)
    for _ in lanes:  # speeds are looked at in turn
        order.look_on(NOW)
    order.check_invariants()
    prompt, tokens = Prompt(PROMPT), len(PROMPT) + 1
    search = Nearest(order, prompt_tokens=tokens, random=Random(seed))
    found = search.by_holdings(index, index.holdings(prompt), order.of([lane.handle for lane in sent], 0.0))
    costs = {lane: rough_cost(lane, uncached=0 if lane in sent else tokens - held[lane]) for lane in lanes}
    assert len(set(found)) == len(found) == min(CUT.at_most, len(lanes))
    assert [costs[lane] for lane in found] == sorted(costs.values())[: CUT.at_most]


@given(policy=st.sampled_from(["kv", "least_loaded", "round_robin", "random"]), seed=st.integers(0, 999))
def test_a_kept_pool_chooses_as_a_list_that_is_looked_at_anew(policy: str, seed: int) -> None:
    """One chooser asks a pool that follows the lanes' books, the other one puts the same lanes in order each time."""
    index, speed, chance = BlockIndex(), FleetSpeed(), Random(seed)
    lanes = [LaneStub(number, index, speed.replica(), width=WIDTH) for number in range(40)]
    pool, here, bookings = Pool(lanes), list(lanes), []
    kept, anew = (Chooser(index, POLICIES[policy](), seed=seed, now=0.0) for _ in range(2))
    for step in range(60):
        now, ids = NOW + step / 1_000, [*PROMPT[: chance.choice([0, 60, 600])], step % 3, *PROMPT[:80]]
        one, two = (
            chooser.choose(Prompt(ids), prompt_tokens=len(ids) + 1, lanes=asked, now=now)
            for chooser, asked in ((kept, pool), (anew, here))
        )
        assert one.chosen.lane is two.chosen.lane
        assert [judged.cost for judged in one.considered] == [judged.cost for judged in two.considered]
        lane = one.chosen.lane
        bookings.append(lane.load.book(one.chosen.uncached_tokens, now=now))
        lane.recent.remember(Prompt(ids).keys(width=WIDTH), width=WIDTH, now=now)
        match chance.randrange(6):
            case 0:
                bookings.pop(chance.randrange(len(bookings))).end()
            case 1:
                chance.choice(bookings).prefilled(now=now)
            case 2:
                lane.store(ids)
            case 3 if len(here) > 20:
                here.remove(lane)
                pool.discard(lane)
            case 4 if len(here) < len(lanes):
                back = next(lane for lane in lanes if lane not in here)
                here.append(back)
                pool.add(back)
            case 5:
                lane.load.report(EngineLoad(running=3, waiting=1, waiting_tokens=900), now=now)


def test_a_report_that_nobody_renews_is_forgotten_in_turn() -> None:
    """The books do not change by it, so nobody tells; a few lanes are looked at for each choice."""
    index, speed = BlockIndex(), FleetSpeed()
    lanes = [LaneStub(number, index, speed.replica(), width=WIDTH) for number in range(20)]
    chance = Random(1)
    for lane in lanes[:19]:
        lane.load.report(EngineLoad(running=1, waiting=1, waiting_tokens=100), now=NOW)
    order = Order(CUT, lanes, now=NOW)
    assert next(order.rising(0, 0.0, chance))[1] is lanes[19]
    for _ in range(20 // LOOKS):
        order.look_on(NOW + FRESH_SECONDS + LOOK_SECONDS)
    assert {cost for cost, _ in order.rising(0, 0.0, chance)} == {0.0}


def test_equals_all_have_their_chance() -> None:
    index, speed = BlockIndex(), FleetSpeed()
    lanes = [LaneStub(number, index, speed.replica(), width=WIDTH) for number in range(60)]
    for lane in lanes[:20]:
        lane.store(PROMPT)
    order, chance, found = Order(CUT, lanes, now=NOW), Random(1), set[LaneStub]()
    for _ in range(200):
        search = Nearest(order, prompt_tokens=len(PROMPT), random=chance)
        found.update(search.by_holdings(index, index.holdings(Prompt(PROMPT)), ()))
    assert found == set(lanes[:20])
    assert {next(order.rising(0, 0.0, chance))[1] for _ in range(800)} == set(lanes)


def test_books_have_no_listener_left_when_a_pool_is_closed() -> None:
    index, speed = BlockIndex(), FleetSpeed()
    lanes = [LaneStub(number, index, speed.replica(), width=WIDTH) for number in range(5)]
    pool = Pool(lanes)
    order = pool.order(CUT, now=NOW)
    pool.discard(lanes[0])
    pool.close()
    for lane in lanes:
        lane.load.book(10, now=NOW)
    order.check_invariants()
    assert [cost for cost, _ in order.rising(0, 0.0, Random(1))] == [0.0] * 4, "nobody told it"


def test_a_lane_in_a_pool_is_known_by_the_handle_it_has_now() -> None:
    index = BlockIndex()
    lane = LaneStub(0, index, FleetSpeed().replica(), width=WIDTH)
    pool, before = Pool([lane]), lane.handle
    order = pool.order(CUT, now=NOW)
    lane.handle = index.add_lane()
    pool.add(lane)
    order.check_invariants()
    assert ([*order.of([before], 0.0)], [*order.of([lane.handle], 0.0)], [*pool]) == ([], [(0.0, lane)], [lane])


def test_pioneers_are_remembered_within_bounds() -> None:
    pioneers = Pioneers()
    for lane in range(MAX_LANES + 5):
        pioneers.add(1, lane)
    assert list(pioneers.of(1)) == list(range(5, MAX_LANES + 5)), "those that it was sent to last"
    for key in range(2, MAX_PREFIXES + 2):
        pioneers.add(key, 0)
    assert (len(pioneers), list(pioneers.of(1)), list(pioneers.of(2))) == (MAX_PREFIXES, [], [0])
