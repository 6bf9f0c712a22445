"""The rules of choice, on values alone."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pytest

from router.choice.policy import MAX_BUSY, POLICIES, Candidate, recomputation_price


def lane(**given: Any) -> Candidate:
    fields: dict[str, Any] = {
        "matched_tokens": 0,
        "uncached_tokens": 1000,
        "queued_tokens": 0,
        "decoding": 0,
        "in_flight": 0,
        "seconds_per_token": 1e-4,
    }
    return Candidate(**fields | given)


def holder(matched: int, *, prompt: int = 1000, **given: Any) -> Candidate:
    return lane(matched_tokens=matched, uncached_tokens=prompt - matched, **given)


def choose(policy: str, *candidates: Candidate, busy: float = 0.0, seed: int = 5) -> int:
    return POLICIES[policy]().choose(candidates, busy=busy, random=Random(seed)).index


def test_a_cost_is_the_sum_of_its_named_terms() -> None:
    candidate = lane(uncached_tokens=300, queued_tokens=700, decoding=3, in_flight=5)
    (score,) = POLICIES["kv"]().choose([candidate], busy=0.5, random=Random(1)).scores
    assert set(score.terms) == {"queue", "prefill", "others", "decode"}
    assert score.cost == pytest.approx(sum(score.terms.values()))
    assert score.terms["queue"] == pytest.approx(0.07)
    assert score.terms["prefill"] == pytest.approx(0.03)
    assert score.terms["others"] == pytest.approx(0.06)  # beta = 1 + 0.5 / 0.5


def test_the_price_of_recomputation_grows_with_load_and_stays_finite() -> None:
    prices = [recomputation_price(busy) for busy in (-1.0, 0.0, 0.5, MAX_BUSY, 1.0, 7.0)]
    assert prices == sorted(prices)
    assert prices[:3] == [1.0, 1.0, 2.0]
    assert prices[-1] == prices[-3] == pytest.approx(5.0)


def test_a_cold_request_goes_to_the_idle_lane_however_small_its_cache() -> None:
    """L5: what other prompts a lane holds is no reason to go there."""
    assert choose("kv", lane(queued_tokens=4000, in_flight=4), lane()) == 1


def test_the_holder_of_the_prefix_wins_over_an_equally_light_lane() -> None:
    """L6."""
    assert choose("kv", lane(), holder(800)) == 1
    assert choose("kv", lane(queued_tokens=300, in_flight=1), holder(800, queued_tokens=300, in_flight=1)) == 1


def test_a_holder_with_a_long_queue_loses_to_an_idle_lane() -> None:
    assert choose("kv", holder(900, queued_tokens=1500), lane()) == 0
    assert choose("kv", holder(900, queued_tokens=2500), lane()) == 1


def test_under_load_a_hit_is_worth_a_longer_queue() -> None:
    candidates = holder(900, queued_tokens=2500), lane()
    assert choose("kv", *candidates, busy=0.0) == 1
    assert choose("kv", *candidates, busy=0.7) == 0


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
            lane(queued_tokens=queue, in_flight=queue // 1000, seconds_per_token=pace)
            for queue, pace in zip(queues, (slow, fast), strict=True)
        ]
        queues[policy.choose(candidates, busy=0.5, random=random).index] += 1000
    assert 0.25 <= queues[0] / queues[1] <= 0.42


@pytest.mark.parametrize("policy", ["kv", "random", "least_loaded", "power_of_two", "round_robin"])
def test_idle_lanes_all_get_a_share(policy: str) -> None:
    """L1: forty requests that nobody holds, one at a time, over four idle lanes."""
    rule, random = POLICIES[policy](), Random(5)
    counts = Counter(rule.choose([lane()] * 4, busy=0.0, random=random).index for _ in range(40))
    assert len(counts) == 4, counts


def test_costs_within_the_error_of_the_speeds_are_ties() -> None:
    """A lane that looks a few per cent faster must not take all the cold traffic of an idle fleet."""
    rule, random = POLICIES["kv"](), Random(5)
    candidates = [lane(seconds_per_token=1e-4), lane(seconds_per_token=1.05e-4)]
    counts = Counter(rule.choose(candidates, busy=0.0, random=random).index for _ in range(60))
    assert min(counts.values()) > 15, counts


def test_a_shared_first_block_does_not_collapse_the_fleet_onto_its_holder() -> None:
    rule, random = POLICIES["kv"](), Random(5)
    candidates = [holder(16), lane(), lane()]
    counts = Counter(rule.choose(candidates, busy=0.0, random=random).index for _ in range(60))
    assert len(counts) == 3, counts


def test_the_same_seed_makes_the_same_choices() -> None:
    for policy in POLICIES:
        runs = []
        for _ in range(2):
            rule, random = POLICIES[policy](), Random(11)
            runs.append([rule.choose([lane()] * 5, busy=0.0, random=random).index for _ in range(30)])
        assert runs[0] == runs[1], policy


def test_round_robin_takes_turns_whatever_a_lane_holds() -> None:
    rule, random = POLICIES["round_robin"](), Random(1)
    candidates = [holder(990), lane(in_flight=9), lane()]
    assert [rule.choose(candidates, busy=0.0, random=random).index for _ in range(5)] == [0, 1, 2, 0, 1]


def test_least_loaded_counts_requests() -> None:
    assert choose("least_loaded", lane(in_flight=2), lane(in_flight=1), holder(999, in_flight=3)) == 1


def test_power_of_two_never_picks_the_busier_of_its_two() -> None:
    rule, random = POLICIES["power_of_two"](), Random(3)
    candidates = [lane(in_flight=9), lane(in_flight=1), lane(in_flight=2)]
    counts = Counter(rule.choose(candidates, busy=0.0, random=random).index for _ in range(90))
    assert counts[0] == 0
    assert counts[1] > counts[2] > 0
    assert rule.choose(candidates[:1], busy=0.0, random=random).index == 0


@pytest.mark.parametrize("policy", list(POLICIES))
def test_every_candidate_gets_a_score_in_the_order_given(policy: str) -> None:
    candidates = [lane(in_flight=n, queued_tokens=100 * n) for n in range(4)]
    choice = POLICIES[policy]().choose(candidates, busy=0.0, random=Random(2))
    assert len(choice.scores) == 4
    assert 0 <= choice.index < 4
