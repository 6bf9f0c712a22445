"""Books of what a lane has been sent: they rise, they fall, and they always return to zero."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.choice.load import FRESH_SECONDS, MOST_PROGRESS, Backlog, Booking, BusyShare, EngineLoad, LaneLoad, Surplus

BOOKED, FIRST_TOKEN, ENDED = range(3)


def test_prefill_tokens_are_released_by_the_first_token_and_the_decode_by_the_end() -> None:
    load = LaneLoad()
    booking = load.book(300, now=0.0)
    assert (load.queued_tokens, load.decoding, load.in_flight) == (300, 0, 1)
    booking.prefilled(now=1.0)
    booking.prefilled(now=1.0)
    assert (load.queued_tokens, load.decoding, load.in_flight) == (0, 1, 1)
    booking.end()
    assert (load.queued_tokens, load.decoding, load.in_flight) == (0, 0, 0)


def test_an_answer_that_ends_before_its_first_token_leaves_nothing() -> None:
    load = LaneLoad()
    booking = load.book(7, now=0.0)
    booking.end()
    booking.prefilled(now=1.0)  # a timer that fires late
    assert (load.queued_tokens, load.prefilling, load.decoding) == (0, 0, 0)


@given(st.lists(st.tuples(st.integers(0, 5000), st.booleans()), max_size=30), st.randoms(use_true_random=False))
def test_books_return_to_zero_in_whatever_order_requests_end(requests, random) -> None:  # type: ignore[no-untyped-def]
    load = LaneLoad()
    bookings: list[tuple[Booking, bool]] = [
        (load.book(tokens, now=0.0), gets_a_token) for tokens, gets_a_token in requests
    ]
    assert load.queued_tokens == sum(tokens for tokens, _ in requests)
    random.shuffle(bookings)
    for booking, gets_a_token in bookings:
        if gets_a_token:
            booking.prefilled(now=1.0)
        booking.end()
    assert (load.queued_tokens, load.prefilling, load.decoding) == (0, 0, 0)


def test_what_is_being_computed_shrinks_with_time_and_what_waits_does_not() -> None:
    load = LaneLoad()
    first = load.book(1000, now=0.0)
    load.book(500, now=0.1)
    assert load.backlog(pace=0.001, now=0.4) == Backlog(500, 600)
    assert load.backlog(pace=0.001, now=9.0) == Backlog(500, pytest.approx(1000 * (1 - MOST_PROGRESS)))
    first.prefilled(now=2.0)
    assert load.backlog(pace=0.001, now=2.1) == Backlog(0, pytest.approx(400))


def test_an_engine_s_own_account_counts_only_beyond_the_books_and_only_while_it_is_fresh() -> None:
    load = LaneLoad()
    load.book(300, now=0.0).prefilled(now=0.0)
    load.book(200, now=0.0)
    load.report(EngineLoad(running=1, waiting=1, waiting_tokens=150), now=1.0)
    assert load.surplus(1.0) == Surplus()
    load.report(EngineLoad(running=4, waiting=3, waiting_tokens=1000, cache_used=0.5), now=1.0)
    assert load.surplus(1.0) == Surplus(tokens=800.0, decoding=3, cache_used=0.5)
    assert load.surplus(1.0 + FRESH_SECONDS + 0.1) == Surplus()


def test_an_account_without_tokens_takes_waiting_requests_for_as_long_as_its_own() -> None:
    load = LaneLoad()
    load.book(400, now=0.0).end()
    load.report(EngineLoad(running=2, waiting=3), now=1.0)
    assert load.surplus(1.0) == Surplus(tokens=1200.0, decoding=2)


def test_the_busy_share_is_work_per_second_and_lane() -> None:
    busy = BusyShare(now=0.0)
    for second in range(600):
        busy.add(1.4, now=float(second))
    assert busy.share(lanes=2, now=600.0) == pytest.approx(0.7, rel=0.05)
    assert busy.share(lanes=4, now=600.0) == pytest.approx(0.35, rel=0.05)


def test_the_busy_share_of_a_new_router_is_not_thrown_by_its_first_request() -> None:
    busy = BusyShare(now=0.0)
    busy.add(0.5, now=0.0)
    assert busy.share(lanes=1, now=0.0) == pytest.approx(0.1, rel=0.1)


def test_the_busy_share_fades_when_nothing_comes() -> None:
    busy = BusyShare(now=0.0)
    for second in range(120):
        busy.add(0.9, now=float(second))
    assert busy.share(lanes=1, now=600.0) < 0.01
