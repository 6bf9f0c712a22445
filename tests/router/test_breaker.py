"""A replica's breaker, the budget of second tries, and books that outlive a lane."""

from __future__ import annotations

import gc

import pytest

from router.fleet.breaker import FAILURES_TO_OPEN, Breaker, BreakerState, counts_as_failure
from router.fleet.loads import Loads
from router.front.retry import BURST, SHARE, RetryBudget, may_be_asked_elsewhere

PAUSE = 3.0


def opened(now: float) -> Breaker:
    breaker = Breaker(pause=PAUSE)
    for _ in range(FAILURES_TO_OPEN):
        breaker.failed(now=now)
    return breaker


def test_it_opens_after_failures_in_a_row_and_not_before() -> None:
    breaker = Breaker(pause=PAUSE)
    for _ in range(3):
        for _ in range(FAILURES_TO_OPEN - 1):
            breaker.failed(now=0.0)
        assert breaker.admits(now=0.0)
        breaker.succeeded()
    assert not opened(0.0).admits(now=0.0)


def test_one_trial_is_let_through_each_pause_whatever_becomes_of_it() -> None:
    breaker = opened(0.0)
    assert breaker.state(now=PAUSE - 0.1) is BreakerState.OPEN
    assert breaker.state(now=PAUSE) is BreakerState.HALF_OPEN
    breaker.sent(now=PAUSE)
    assert not breaker.admits(now=PAUSE)  # its client may leave, and nothing be known of it
    assert breaker.admits(now=2 * PAUSE)
    breaker.sent(now=2 * PAUSE)
    breaker.failed(now=2 * PAUSE + 1)
    assert not breaker.admits(now=3 * PAUSE)
    assert breaker.admits(now=3 * PAUSE + 1)


def test_one_good_answer_closes_it() -> None:
    breaker = opened(0.0)
    breaker.sent(now=PAUSE)
    breaker.succeeded()
    assert breaker.state(now=PAUSE) is BreakerState.CLOSED
    breaker.failed(now=PAUSE)
    assert breaker.admits(now=PAUSE)


@pytest.mark.parametrize(
    ("status", "failure", "elsewhere"),
    [
        (200, False, False),
        (400, False, False),
        (429, False, True),
        (500, True, True),
        (502, True, True),
        (503, False, True),
    ],
)
def test_what_a_status_says_of_an_engine(status: int, failure: bool, elsewhere: bool) -> None:
    assert counts_as_failure(status) is failure
    assert may_be_asked_elsewhere(status) is elsewhere


def test_second_tries_are_a_share_of_requests_after_a_burst() -> None:
    budget = RetryBudget()
    taken = 0
    for _ in range(1000):
        budget.earn()
        taken += budget.spend()
    assert taken == pytest.approx(BURST + SHARE * 1000, abs=1 + SHARE)


def test_a_lanes_books_are_found_again_while_somebody_holds_them() -> None:
    loads = Loads()
    books = loads.of("http://a", 0)
    booking = books.book(7, now=0.0)
    del books
    gc.collect()
    assert loads.of("http://a", 0).queued_tokens == 7
    assert loads.of("http://a", 1).queued_tokens == 0
    booking.end()
    del booking
    gc.collect()
    assert loads.of("http://a", 0).in_flight == 0
