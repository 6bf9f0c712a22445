"""The rules of choice, on values alone."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pytest

from router.choice.candidate import Candidate, Circumstances
from router.choice.kv_cost import LOAD_BACK_SHARE, LOAD_PRICE, MAX_BUSY, SPREAD_REQUESTS, WORK_PRICE
from router.choice.policy import POLICIES


def lane(**given: Any) -> Candidate:
    fields: dict[str, Any] = {
        "held_tokens": 0,
        "uncached_tokens": 1000,
        "seconds_per_token": 1e-4,
    }
    return Candidate(**fields | given)


def holder(matched: int, *, prompt: int = 1000, **given: Any) -> Candidate:
    return lane(held_tokens=matched, uncached_tokens=prompt - matched, **given)


def choose(
    policy: str, *candidates: Candidate, busy: float = 0.0, rate: float = 0.0, heat: float = 0.0, seed: int = 5
) -> int:
    around = Circumstances(busy=busy, rate=rate, heat=heat)
    return POLICIES[policy]().choose(candidates, around=around, random=Random(seed)).index


def terms(
    candidate: Candidate, *others: Candidate, busy: float = 0.0, rate: float = 0.0, heat: float = 0.0
) -> dict[str, float]:
    around = Circumstances(busy=busy, rate=rate, heat=heat)
    score = POLICIES["kv"]().choose([candidate, *others], around=around, random=Random(1)).scores[0]
    assert score.cost == pytest.approx(sum(score.terms.values()))
    return dict(score.terms)


def test_a_cost_is_the_sum_of_its_named_terms() -> None:
    candidate = lane(
        held_tokens=700,
        uncached_tokens=300,
        waiting_tokens=700,
        running_tokens=100,
        decoding=3,
        in_flight=5,
        tiers={"CPU": 500, "GPU": 200},
        foreign_tokens=50,
        foreign_decoding=10,
        cache_used=0.95,
        regret=0.4,
        away_seconds=0.5,
    )
    found = terms(candidate, lane(), busy=0.5, rate=2.0)
    assert found == {
        "queue": pytest.approx(0.07),
        "running": pytest.approx(0.01),
        "elsewhere": pytest.approx(0.025),
        "prefill": pytest.approx(0.03),
        "load_back": pytest.approx(0.005),
        "behind": pytest.approx(2.0 / 0.5 * 0.03 * (0.07 + 0.01 + 0.025 + 0.03 / 2)),
        "work": pytest.approx((WORK_PRICE + LOAD_PRICE) * 0.03),
        "room": pytest.approx(0.03 * 0.4),
        "decode": pytest.approx(0.006),
        "crowded": pytest.approx(0.5),
        "spread": 0.0,
        "affinity": 0.5,
    }


def test_a_slower_tier_is_worth_less_than_the_gpu_and_more_than_nothing() -> None:
    tiers = ["GPU", "CPU", "DISK"]
    costs = [sum(terms(holder(900, tiers={tier: 900})).values()) for tier in tiers]
    assert costs == sorted(costs)
    assert len(set(costs)) == 3
    assert costs[-1] < sum(terms(lane()).values())
    assert terms(holder(900, tiers={"TAPE": 900}))["load_back"] >= terms(holder(900, tiers={"DISK": 900}))["load_back"]
    assert LOAD_BACK_SHARE["GPU"] == 0.0


def test_a_prefix_that_is_asked_for_often_enough_gets_another_copy_and_no_more_than_that() -> None:
    """L4, where requests come one by one and no queue ever says that there are many."""
    cold = lane()
    assert choose("kv", holder(900), cold, heat=SPREAD_REQUESTS / 2) == 0
    assert {choose("kv", holder(900, in_flight=1), cold, heat=heat) for heat in (SPREAD_REQUESTS, 500.0)} == {1}
    assert terms(holder(900), holder(900), cold, heat=SPREAD_REQUESTS)["spread"] < 0.02
    assert terms(cold, holder(900), heat=500.0)["spread"] == 0.0


def test_a_session_stays_where_it_was_until_that_costs_more_than_its_preference() -> None:
    assert choose("kv", lane(away_seconds=0.05), lane(waiting_tokens=100, in_flight=1)) == 1
    assert choose("kv", lane(away_seconds=0.05), lane(waiting_tokens=900, in_flight=1)) == 0


def test_a_slow_replica_s_work_costs_others_no_more_than_a_fast_one_s() -> None:
    """Its seconds are worth less: less can be done in them."""
    slow, fast = lane(seconds_per_token=3e-4), lane(seconds_per_token=1e-4)
    assert terms(slow, fast)["work"] == terms(fast, slow)["work"]


def test_the_price_of_delaying_others_grows_with_load_and_stays_finite() -> None:
    prices = [terms(lane(), busy=busy, rate=1.0)["behind"] for busy in (-1.0, 0.0, 0.5, MAX_BUSY, 1.0, 7.0)]
    assert prices == sorted(prices)
    assert prices[:3] == pytest.approx([0.1 * 0.05, 0.1 * 0.05, 2 * 0.1 * 0.05])
    assert prices[-1] == prices[-3] == pytest.approx(5 * 0.1 * 0.05)
    assert terms(lane(), rate=0.0)["behind"] == 0.0


def test_work_behind_a_backlog_delays_more_than_work_on_an_idle_lane() -> None:
    idle, busy = lane(), lane(waiting_tokens=4000)
    assert terms(busy, idle, rate=1.0)["behind"] == pytest.approx(9 * terms(idle, busy, rate=1.0)["behind"])


def test_saved_work_is_worth_the_more_the_busier_the_fleet_is_up_to_half() -> None:
    prices = [terms(lane(), busy=busy)["work"] / 0.1 for busy in (0.0, 0.2, 0.5, 1.0)]
    assert prices == pytest.approx([WORK_PRICE, WORK_PRICE + LOAD_PRICE / 4, *[WORK_PRICE + LOAD_PRICE] * 2])
    loaded, idle = holder(900, waiting_tokens=3000), lane()
    assert choose("kv", loaded, idle, busy=0.1) == 1
    assert choose("kv", loaded, idle, busy=0.5) == 0


def test_what_nobody_holds_goes_where_least_that_is_dropped_will_be_asked_for_again() -> None:
    """Between idle lanes; and it is no reason to leave a holder, or to wait longer than the room is worth."""
    crowded, roomy, fresh = lane(regret=0.9), lane(regret=0.3), lane()
    assert choose("kv", crowded, roomy) == 1
    assert choose("kv", crowded, roomy, fresh) == 2
    assert choose("kv", holder(800, regret=1.0), fresh) == 0
    assert choose("kv", crowded, lane(waiting_tokens=700, in_flight=1)) == 1
    assert choose("kv", crowded, lane(waiting_tokens=1200, in_flight=1)) == 0
    assert terms(fresh, crowded)["room"] == 0.0


def test_a_cold_request_goes_to_the_idle_lane_however_small_its_cache() -> None:
    """L5: what other prompts a lane holds is no reason to go there."""
    assert choose("kv", lane(waiting_tokens=4000, in_flight=4), lane()) == 1


def test_the_holder_of_the_prefix_wins_over_an_equally_light_lane() -> None:
    """L6."""
    assert choose("kv", lane(), holder(800)) == 1
    assert choose("kv", lane(waiting_tokens=300, in_flight=1), holder(800, waiting_tokens=300, in_flight=1)) == 1


def test_a_holder_with_a_long_queue_loses_to_an_idle_lane() -> None:
    assert choose("kv", holder(900, waiting_tokens=1500), lane()) == 0
    assert choose("kv", holder(900, waiting_tokens=2000), lane()) == 1


def test_under_load_a_hit_is_worth_a_longer_queue() -> None:
    candidates = holder(990, waiting_tokens=5000), lane()
    assert choose("kv", *candidates) == 1
    assert choose("kv", *candidates, busy=0.7, rate=5.0) == 0


def test_running_decodes_push_a_cold_request_away() -> None:
    """L3: requests that have their first token are load too."""
    assert choose("kv", lane(decoding=150, in_flight=150), lane()) == 1


def test_a_lane_three_times_slower_gets_about_a_third_of_a_burst() -> None:
    """L10: cold requests of equal length, one after the other, none finished."""
    slow, fast = 3e-4, 1e-4
    queues = [0, 0]
    policy, random = POLICIES["kv"](), Random(1)
    for _ in range(200):
        candidates = [
            lane(waiting_tokens=queue, in_flight=queue // 1000, seconds_per_token=pace)
            for queue, pace in zip(queues, (slow, fast), strict=True)
        ]
        queues[policy.choose(candidates, around=Circumstances(busy=0.5), random=random).index] += 1000
    assert 0.25 <= queues[0] / queues[1] <= 0.42


@pytest.mark.parametrize("policy", ["kv", "random", "least_loaded", "power_of_two", "round_robin"])
def test_idle_lanes_all_get_a_share(policy: str) -> None:
    """L1: forty requests that nobody holds, one at a time, over four idle lanes."""
    rule, random = POLICIES[policy](), Random(5)
    counts = Counter(rule.choose([lane()] * 4, around=Circumstances(busy=0.0), random=random).index for _ in range(40))
    assert len(counts) == 4, counts


def test_costs_within_the_error_of_the_speeds_are_ties() -> None:
    """A lane that looks a few per cent faster must not take all the cold traffic of an idle fleet."""
    rule, random = POLICIES["kv"](), Random(5)
    candidates = [lane(seconds_per_token=1e-4), lane(seconds_per_token=1.02e-4)]
    counts = Counter(rule.choose(candidates, around=Circumstances(busy=0.0), random=random).index for _ in range(60))
    assert min(counts.values()) > 15, counts


def test_a_shared_first_block_does_not_collapse_the_fleet_onto_its_holder() -> None:
    rule, random = POLICIES["kv"](), Random(5)
    candidates = [holder(16), lane(), lane()]
    counts = Counter(rule.choose(candidates, around=Circumstances(busy=0.0), random=random).index for _ in range(60))
    assert len(counts) == 3, counts


def test_the_same_seed_makes_the_same_choices() -> None:
    for policy in POLICIES:
        runs = []
        for _ in range(2):
            rule, random = POLICIES[policy](), Random(11)
            runs.append(
                [rule.choose([lane()] * 5, around=Circumstances(busy=0.0), random=random).index for _ in range(30)]
            )
        assert runs[0] == runs[1], policy


def test_round_robin_takes_turns_whatever_a_lane_holds() -> None:
    rule, random = POLICIES["round_robin"](), Random(1)
    candidates = [holder(990), lane(in_flight=9), lane()]
    assert [rule.choose(candidates, around=Circumstances(busy=0.0), random=random).index for _ in range(5)] == [
        0,
        1,
        2,
        0,
        1,
    ]


def test_least_loaded_counts_requests() -> None:
    assert choose("least_loaded", lane(in_flight=2), lane(in_flight=1), holder(999, in_flight=3)) == 1


def test_power_of_two_never_picks_the_busier_of_its_two() -> None:
    rule, random = POLICIES["power_of_two"](), Random(3)
    candidates = [lane(in_flight=9), lane(in_flight=1), lane(in_flight=2)]
    counts = Counter(rule.choose(candidates, around=Circumstances(busy=0.0), random=random).index for _ in range(90))
    assert counts[0] == 0
    assert counts[1] > counts[2] > 0
    assert rule.choose(candidates[:1], around=Circumstances(busy=0.0), random=random).index == 0


@pytest.mark.parametrize("policy", list(POLICIES))
def test_every_candidate_gets_a_score_in_the_order_given(policy: str) -> None:
    candidates = [lane(in_flight=n, waiting_tokens=100 * n) for n in range(4)]
    choice = POLICIES[policy]().choose(candidates, around=Circumstances(busy=0.0), random=Random(2))
    assert len(choice.scores) == 4
    assert 0 <= choice.index < 4
