"""Prefill speed, learnt from times to first token."""

from __future__ import annotations

from random import Random

import pytest

from router.choice.speed import PRIOR_PACE, FleetSpeed, ReplicaSpeed

OVERHEAD = 0.02


def teach(replica: ReplicaSpeed, pace: float, *, count: int = 30, start: float = 0.0, seed: int = 3) -> float:
    """Observations of a replica with that pace and 10 % noise, two a second; the time of the last."""
    random, now = Random(seed), start
    for _ in range(count):
        tokens = random.randint(50, 4000)
        now += 0.5
        seconds = OVERHEAD + tokens * pace * random.uniform(0.9, 1.1)
        replica.observe(tokens=tokens, seconds=seconds, now=now)
    return now


def test_nothing_seen_is_the_prior() -> None:
    assert FleetSpeed().replica().line(0.0).pace == pytest.approx(PRIOR_PACE)


@pytest.mark.parametrize("pace", [2e-5, 1e-4, 2e-3])
def test_a_pace_is_learnt_apart_from_the_overhead(pace: float) -> None:
    replica = FleetSpeed().replica()
    now = teach(replica, pace)
    line = replica.line(now)
    assert line.pace == pytest.approx(pace, rel=0.15)
    assert line.overhead == pytest.approx(OVERHEAD, abs=0.02 + 200 * pace)


def test_mostly_cached_prompts_do_not_make_a_replica_look_slow() -> None:
    """A prompt of which ten tokens are left costs the overhead; that is not ten tokens' pace."""
    replica = FleetSpeed().replica()
    now = teach(replica, 1e-4)
    for _ in range(30):
        now += 0.1
        replica.observe(tokens=10, seconds=OVERHEAD, now=now)
    assert replica.line(now).pace == pytest.approx(1e-4, rel=0.2)


def test_a_slow_replica_is_told_from_a_fast_one() -> None:
    fleet = FleetSpeed()
    slow, fast = fleet.replica(), fleet.replica()
    teach(fast, 1e-4, count=60)
    now = teach(slow, 3e-4, count=60)
    assert 2.0 <= slow.line(now).pace / fast.line(now).pace <= 3.3


def test_a_new_replica_starts_as_what_its_siblings_are() -> None:
    """Else all traffic of a fast idle fleet would go to the one replica that has been measured."""
    fleet = FleetSpeed()
    now = teach(fleet.replica(), 1e-5)
    assert fleet.replica().line(now).pace == pytest.approx(1e-5, rel=0.3)


def test_one_bad_minute_is_forgotten() -> None:
    fleet = FleetSpeed()
    stalled, sibling = fleet.replica(), fleet.replica()
    now = teach(sibling, 1e-4, count=60)
    now = teach(stalled, 5e-3, count=10, start=now)
    bad = stalled.line(now).pace
    now = teach(sibling, 1e-4, count=600, start=now)
    assert stalled.line(now).pace < bad / 5


def test_noise_never_makes_a_pace_negative_or_unbounded() -> None:
    replica = FleetSpeed().replica()
    for number in range(20):
        replica.observe(tokens=1000 - 50 * number, seconds=0.001 + 0.01 * number, now=float(number))
    line = replica.line(20.0)
    assert line.pace > 0.0
    assert line.overhead >= 0.0
    replica.observe(tokens=0, seconds=1e6, now=21.0)
    assert replica.line(21.0).pace <= 0.1


def test_answers_that_come_at_once_teach_too_less_what_their_further_tokens_took() -> None:
    random, replica, step = Random(5), FleetSpeed().replica(), 0.01
    for _ in range(20):
        replica.observe_decoding(tokens=10, seconds=10 * step)
    for second in range(60):
        tokens, answer = random.randint(50, 4000), random.randint(1, 200)
        seconds = OVERHEAD + tokens * 2e-4 + (answer - 1) * step
        replica.observe_whole(tokens=tokens, answer_tokens=answer, seconds=seconds, now=float(second))
    assert replica.line(60.0).pace == pytest.approx(2e-4, rel=0.1)


def test_a_long_answer_that_came_at_once_says_nothing_where_decoding_is_unknown() -> None:
    replica = FleetSpeed().replica()
    replica.observe_whole(tokens=100, answer_tokens=500, seconds=9.0, now=1.0)
    replica.observe_whole(tokens=100, answer_tokens=None, seconds=9.0, now=1.0)
    assert replica.line(1.0).pace == pytest.approx(PRIOR_PACE)


def test_replicas_of_nearly_one_speed_are_compared_as_equals() -> None:
    fleet = FleetSpeed()
    near, slow = fleet.replica(), fleet.replica()
    teach(near, 1.1e-4)
    now = teach(fleet.replica(), 1e-4, seed=4)
    assert near.pace(now) == fleet.line.pace
    now = teach(slow, 5e-4, count=10, start=now)
    assert slow.pace(now) == slow.line(now).pace > 2 * near.line(now).pace
