"""Books of what a lane has been sent: they rise, they fall, and they always return to zero."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.choice.load import Booking, BusyShare, LaneLoad

BOOKED, FIRST_TOKEN, ENDED = range(3)


def test_prefill_tokens_are_released_by_the_first_token_and_the_decode_by_the_end() -> None:
    load = LaneLoad()
    booking = load.book(300)
    assert (load.queued_tokens, load.decoding, load.in_flight) == (300, 0, 1)
    booking.prefilled()
    booking.prefilled()
    assert (load.queued_tokens, load.decoding, load.in_flight) == (0, 1, 1)
    booking.end()
    assert (load.queued_tokens, load.decoding, load.in_flight) == (0, 0, 0)


def test_a_booking_knows_what_was_queued_before_it() -> None:
    load = LaneLoad()
    assert [load.book(tokens).tokens_ahead for tokens in (100, 200, 5)] == [0, 100, 300]


def test_an_answer_that_ends_before_its_first_token_leaves_nothing() -> None:
    load = LaneLoad()
    booking = load.book(7)
    booking.end()
    booking.prefilled()  # a timer that fires late
    assert (load.queued_tokens, load.prefilling, load.decoding) == (0, 0, 0)


@given(st.lists(st.tuples(st.integers(0, 5000), st.booleans()), max_size=30), st.randoms(use_true_random=False))
def test_books_return_to_zero_in_whatever_order_requests_end(requests, random) -> None:  # type: ignore[no-untyped-def]
    load = LaneLoad()
    bookings: list[tuple[Booking, bool]] = [(load.book(tokens), gets_a_token) for tokens, gets_a_token in requests]
    assert load.queued_tokens == sum(tokens for tokens, _ in requests)
    random.shuffle(bookings)
    for booking, gets_a_token in bookings:
        if gets_a_token:
            booking.prefilled()
        booking.end()
    assert (load.queued_tokens, load.prefilling, load.decoding) == (0, 0, 0)


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
