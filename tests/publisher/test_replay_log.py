"""The replay log against a model that forgets nothing."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from publisher.replay_log import ReplayLog


def filled(count: int, *, keep: int, queue_limit: int) -> ReplayLog:
    log = ReplayLog(keep=keep, queue_limit=queue_limit)
    for number in range(count):
        log.append(b"%d" % number)
    return log


def test_numbers_are_dense_from_zero() -> None:
    log = filled(3, keep=10, queue_limit=10)
    assert log.read(0, stop=3, limit=10) == [(0, b"0"), (1, b"1"), (2, b"2")]


def test_sent_batches_are_kept_for_replay_up_to_the_bound() -> None:
    log = filled(10, keep=3, queue_limit=100)
    log.take_live(10)
    assert log.first_seq == 7
    assert [seq for seq, _ in log.read(0, stop=10, limit=10)] == [7, 8, 9]


def test_batches_that_wait_are_kept_although_replay_would_have_forgotten_them() -> None:
    log = filled(10, keep=3, queue_limit=100)
    assert [seq for seq, _ in log.take_live(100)] == list(range(10))


def test_a_full_queue_skips_the_oldest_and_replay_still_has_it() -> None:
    log = ReplayLog(keep=10, queue_limit=2)
    assert [log.append(b"x") for _ in range(4)] == [0, 0, 1, 1]
    assert [seq for seq, _ in log.take_live(10)] == [2, 3]
    assert [seq for seq, _ in log.read(0, stop=2, limit=10)] == [0, 1]


def test_reading_past_the_end_or_before_the_start_finds_nothing() -> None:
    log = filled(10, keep=3, queue_limit=1)
    assert log.read(10, stop=20, limit=5) == []
    assert log.read(0, stop=5, limit=5) == []
    assert log.read(2**64 - 1, stop=10, limit=5) == []


class ReplayLogModel(RuleBasedStateMachine):
    """Every payload ever appended, and the live cursor as a plain number."""

    @initialize(keep=st.integers(1, 6), queue_limit=st.integers(1, 9))
    def begin(self, keep: int, queue_limit: int) -> None:
        self.keep, self.queue_limit = keep, queue_limit
        self.log = ReplayLog(keep=keep, queue_limit=queue_limit)
        self.all: list[tuple[int, bytes]] = []
        self.live = 0

    @rule(count=st.integers(1, 8))
    def append(self, count: int) -> None:
        for _ in range(count):
            payload = b"payload %d" % len(self.all)
            self.all.append((len(self.all), payload))
            live = max(self.live, len(self.all) - self.queue_limit)
            assert self.log.append(payload) == live - self.live
            self.live = live

    @rule(limit=st.integers(0, 10))
    def take_live(self, limit: int) -> None:
        expected = self.all[self.live : self.live + limit]
        assert self.log.take_live(limit) == expected
        self.live += len(expected)

    @rule(start=st.integers(0, 60), length=st.integers(0, 60), limit=st.integers(0, 20))
    def read(self, start: int, length: int, limit: int) -> None:
        got = self.log.read(start, stop=start + length, limit=limit)
        remembered = self.all[self.log.first_seq :]
        assert got == [batch for batch in remembered if start <= batch[0] < start + length][:limit]

    @invariant()
    def remembers_what_it_must(self) -> None:
        self.log.check_invariants()
        assert self.log.next_seq == len(self.all)
        assert self.log.pending == len(self.all) - self.live
        assert self.log.first_seq == max(0, min(self.live, len(self.all) - self.keep))


TestReplayLogModel = ReplayLogModel.TestCase
