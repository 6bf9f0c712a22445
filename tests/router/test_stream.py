"""One lane's stream: applied once and in order, holes asked for, restarts noticed, losses admitted."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from contract.events import AllBlocksCleared, BlockRemoved, BlockStored, Dialect, Event, encode_batch
from contract.framing import Frame
from router.intake.stream import Action, Apply, AskReplay, Clear, LaneStream
from router.intake.stream_report import StreamLimits, StreamState

_CLOCK = itertools.count()


def stored(name: int) -> BlockStored:
    return BlockStored(block_hashes=[name], parent_block_hash=None, token_ids=[1] * 6, block_size=6, medium="GPU")


def removed(name: int) -> BlockRemoved:
    return BlockRemoved(block_hashes=[name], medium="GPU")


def frame(seq: int, *events: Event, payload: bytes | None = None) -> Frame:
    """A batch; no two have the same payload, since engines stamp theirs with the time."""
    if payload is None:
        payload = encode_batch(events or [stored(seq)], ts=next(_CLOCK), dp_rank=0, dialect=Dialect.SGLANG)
    return Frame(b"", seq, payload)


class Lane:
    """A stream, and what came of it: the blocks held, and the replay that is wanted."""

    def __init__(self, *, can_replay: bool = True, limits: StreamLimits | None = None) -> None:
        self.stream = LaneStream(can_replay=can_replay, limits=limits)
        self.held: set[int] = set()
        self.applied: list[float] = []
        self.wanted: int | None = None
        self.clears = 0

    def do(self, actions: Iterable[Action]) -> None:
        for action in actions:
            match action:
                case Apply(batch):
                    self.applied.append(batch.ts)
                    for event in batch.events:
                        self._fold(event)
                case Clear():
                    self.held.clear()
                    self.clears += 1
                case AskReplay(start):
                    self.wanted = start

    def _fold(self, event: object) -> None:
        match event:
            case BlockStored():
                self.held.update(name for name in event.block_hashes if isinstance(name, int))
            case BlockRemoved():
                self.held.difference_update(event.block_hashes)
            case AllBlocksCleared():
                self.held.clear()

    def live(self, *frames: Frame) -> None:
        for each in frames:
            self.do(self.stream.live(each, now=12.5))

    def replay(self, frames: Sequence[Frame], *, end: bool = True) -> None:
        """Answer the wanted replay from an engine's log."""
        start = self.wanted
        assert start is not None, "no replay is wanted"
        self.wanted = None
        for each in frames:
            if each.seq >= start and self.wanted is None:
                self.do(self.stream.replayed(each))
        if end and self.wanted is None:
            self.do(self.stream.replay_ended())

    def fail(self) -> None:
        self.wanted = None
        self.do(self.stream.replay_failed("it did not answer"))

    def join(self, log: Sequence[Frame] = ()) -> None:
        self.do(self.stream.connected())
        assert self.wanted == 0
        self.replay(log)

    @property
    def state(self) -> StreamState:
        return self.stream.status.state


# Joining


def test_joining_replays_from_the_start_and_then_follows() -> None:
    lane, log = Lane(), [frame(0), frame(1)]
    assert lane.state is StreamState.CONNECTING
    lane.do(lane.stream.connected())
    assert lane.state is StreamState.JOINING
    lane.live(frame(2))
    assert lane.held == set(), "a live batch waits for what comes before it"
    lane.replay(log)
    lane.live(frame(3))
    assert (lane.held, lane.state, lane.stream.status.known_from) == ({0, 1, 2, 3}, StreamState.LIVE, 0)
    assert lane.stream.status.last_event_time == 12.5


def test_replay_and_live_overlap_is_applied_once() -> None:
    lane, log = Lane(), [frame(seq) for seq in range(5)]
    lane.do(lane.stream.connected())
    lane.live(*log[2:])
    lane.replay(log)
    lane.live(*log[3:])
    assert len(lane.applied) == len(set(lane.applied)) == 5
    assert lane.stream.status.duplicates == 5
    assert lane.state is StreamState.LIVE


def test_joining_late_takes_what_the_log_has_left_and_says_from_where() -> None:
    lane = Lane()
    lane.join([frame(seq) for seq in range(900, 1001)])
    status = lane.stream.status
    assert (status.last_seq, status.known_from, status.lost, status.state) == (1000, 900, 0, StreamState.LIVE)


def test_joining_without_a_replay_endpoint_starts_at_the_first_live_batch() -> None:
    lane = Lane(can_replay=False)
    lane.do(lane.stream.connected())
    lane.live(frame(1000), frame(1001))
    status = lane.stream.status
    assert (status.last_seq, status.known_from, status.lost, status.gaps) == (1001, 1000, 0, 0)
    assert (lane.wanted, status.state) == (None, StreamState.LIVE)


def test_a_snapshot_makes_a_late_join_complete() -> None:
    lane = Lane()
    lane.join([frame(5000, AllBlocksCleared(), stored(7)), frame(5001)])
    assert (lane.held, lane.stream.status.known_from, lane.stream.status.lost) == ({7, 5001}, 0, 0)


def test_batches_that_a_snapshot_contains_are_no_restart_when_they_arrive_late() -> None:
    lane = Lane()
    lane.do(lane.stream.connected())
    lane.replay([frame(50, AllBlocksCleared(), stored(7))])
    lane.live(frame(49), frame(50), frame(51))
    assert (lane.held, lane.clears) == ({7, 51}, 0)


def test_a_snapshots_number_is_no_evidence_against_the_batch_it_stands_for() -> None:
    lane, real = Lane(), frame(50)
    lane.join([frame(50, AllBlocksCleared(), stored(50))])
    for _ in range(2):
        lane.do(lane.stream.check())
        lane.replay([real])
    assert (lane.clears, lane.state) == (0, StreamState.LIVE)
    lane.do(lane.stream.check())
    lane.replay([frame(50)])
    assert lane.wanted == 0, "once the real batch is known, another one under its number is another engine"


# Holes


def test_a_hole_is_filled_in_order_before_newer_batches_apply() -> None:
    lane, log = Lane(), [frame(0, stored(1)), frame(1, removed(1)), frame(2, stored(1)), frame(3, removed(1))]
    lane.join(log[:1])
    lane.live(log[3])
    assert (lane.wanted, lane.held, lane.state) == (0, {1}, StreamState.REPLAYING)
    lane.replay(log[:3])
    assert (lane.held, len(lane.applied)) == (set(), 4)
    status = lane.stream.status
    assert (status.gaps, status.lost, status.replayed, status.last_seq) == (1, 0, 3, 3)


def test_a_hole_that_nobody_can_fill_is_lost_and_not_asked_for_again() -> None:
    """Engines burn a number when a batch cannot be encoded; no replay will ever have it."""
    lane, log = Lane(), [frame(0), frame(2), frame(3)]
    lane.join(log[:1])
    lane.live(log[1])
    lane.replay(log[:2])
    lane.live(log[2])
    status = lane.stream.status
    assert (lane.held, lane.wanted, status.gaps, status.lost) == ({0, 2, 3}, None, 1, 1)
    assert (status.state, status.reason) == (StreamState.UNTRUSTED, "lost before batch 2: 1")


def test_a_hole_without_a_replay_endpoint_is_lost() -> None:
    lane = Lane(can_replay=False)
    lane.live(frame(0), frame(4))
    status = lane.stream.status
    assert (lane.held, status.gaps, status.lost, status.state) == ({0, 4}, 1, 3, StreamState.UNTRUSTED)


def test_a_replay_that_fails_lets_live_batches_go_on() -> None:
    lane = Lane()
    lane.join([frame(0)])
    lane.live(frame(3), frame(4))
    lane.fail()
    status = lane.stream.status
    assert (lane.held, status.lost, status.replay_failures) == ({0, 3, 4}, 2, 1)
    assert status.state is StreamState.UNTRUSTED
    lane.live(frame(5))
    assert lane.held == {0, 3, 4, 5}


def test_a_second_hole_behind_the_first_is_asked_for_too() -> None:
    lane, log = Lane(), [frame(seq) for seq in range(8)]
    lane.join(log[:1])
    lane.live(log[2], log[5])
    lane.replay(log[:3])
    assert lane.wanted == 2
    lane.replay(log[:6])
    lane.live(log[6])
    assert (lane.held, lane.stream.status.gaps, lane.stream.status.lost) == (set(range(7)), 2, 0)


def test_an_endpoint_that_never_has_anything_costs_one_question_a_hole() -> None:
    lane = Lane()
    lane.join()
    lane.live(frame(10))
    lane.replay([])
    assert (lane.held, lane.wanted) == ({10}, None)
    lane.live(frame(12))
    lane.replay([])
    lane.replay([])
    assert (lane.held, lane.wanted) == ({10, 12}, None)


def test_live_batches_held_are_bounded_and_the_rest_comes_by_replay() -> None:
    lane, log = Lane(limits=StreamLimits(held_batches=2)), [frame(seq) for seq in range(9)]
    lane.join(log[:1])
    lane.live(*log[2:8])
    assert (lane.stream.status.held, lane.stream.status.held_dropped) == (2, 4)
    lane.replay(log[:4])
    lane.live(log[8])
    lane.replay(log)
    assert (lane.held, lane.stream.status.lost) == (set(range(9)), 0)


def test_a_replay_tried_again_goes_on_where_it_broke_off() -> None:
    lane, log = Lane(), [frame(seq) for seq in range(6)]
    lane.do(lane.stream.connected())
    lane.replay(log[:3], end=False)
    again = lane.stream.replay_again()
    assert again == AskReplay(2)
    lane.do([again])
    lane.replay(log)
    assert (lane.held, len(lane.applied)) == (set(range(6)), 6)


# Restarts


def test_a_number_that_goes_back_to_zero_clears_the_lane_at_once() -> None:
    lane = Lane()
    lane.join([frame(seq) for seq in range(501)])
    new = [frame(0, stored(7)), frame(1), frame(2)]
    lane.live(new[0])
    assert (lane.held, lane.clears) == ({7}, 1)
    lane.live(new[1])
    assert lane.held == {7, 1}, "new batches apply while a replay shows that the first was no straggler"
    lane.replay(new[:2])
    lane.live(new[2])
    status = lane.stream.status
    assert (lane.held, status.restarts, status.last_seq, status.state) == ({7, 1, 2}, 1, 2, StreamState.LIVE)


def test_a_straggler_of_the_engine_before_does_not_mix_with_the_new_ones_batches() -> None:
    lane, old = Lane(), [frame(0, stored(1)), frame(1, stored(2))]
    new = [frame(0, stored(100)), frame(1, stored(101)), frame(2, stored(102))]
    lane.join(new[:2])
    lane.live(old[0])
    lane.replay(new[:2])
    lane.live(new[2])
    assert lane.held == {100, 101, 102}


def test_a_restart_seen_late_asks_for_what_was_missed() -> None:
    lane, new = Lane(), [frame(seq, stored(100 + seq)) for seq in range(4)]
    lane.join([frame(seq) for seq in range(501)])
    lane.live(new[2])
    assert (lane.held, lane.wanted) == (set(), 0)
    lane.replay(new[:3])
    lane.live(new[3])
    assert (lane.held, lane.stream.status.lost) == ({100, 101, 102, 103}, 0)


def test_a_restart_seen_late_without_replay_has_lost_its_beginning() -> None:
    lane = Lane(can_replay=False)
    lane.live(frame(0), frame(1), frame(2), frame(2, stored(100)), frame(3, stored(101)))
    status = lane.stream.status
    assert (lane.held, status.lost, status.gaps, status.restarts) == ({100, 101}, 2, 1, 1)


def test_a_restart_that_hides_behind_higher_numbers_is_noticed_by_its_replay() -> None:
    lane, new = Lane(), [frame(seq, stored(100 + seq)) for seq in range(8)]
    lane.join([frame(seq) for seq in range(4)])
    lane.live(new[6])
    assert lane.wanted == 3, "the last batch applied is asked for again, to be compared"
    lane.replay(new[:7])
    assert (lane.held, lane.wanted) == (set(), 0)
    lane.replay(new[:7])
    lane.live(new[7])
    assert (lane.held, lane.stream.status.restarts) == ({100 + seq for seq in range(8)}, 1)


def test_a_reconnect_finds_a_restarted_engine_that_has_sent_less() -> None:
    lane, new = Lane(), [frame(0, stored(100)), frame(1, stored(101))]
    lane.join([frame(seq) for seq in range(501)])
    lane.do(lane.stream.connected())
    assert lane.wanted == 500
    lane.replay(new)
    assert (lane.wanted, lane.clears) == (0, 0), "before everything is dropped: does it know anything at all?"
    lane.replay(new)
    assert (lane.held, lane.stream.status.restarts, lane.state) == ({100, 101}, 1, StreamState.LIVE)


def test_a_reconnect_finds_a_restarted_engine_that_has_sent_nothing() -> None:
    lane = Lane()
    lane.join([frame(0), frame(1)])
    lane.do(lane.stream.connected())
    lane.replay([])
    lane.replay([])
    assert (lane.held, lane.state, lane.stream.status.known_from) == (set(), StreamState.LIVE, 0)


def test_a_reconnect_to_the_same_engine_changes_nothing() -> None:
    lane, log = Lane(), [frame(0), frame(1)]
    lane.join(log)
    lane.do(lane.stream.connected())
    lane.live(frame(2))
    lane.replay(log)
    assert (lane.held, lane.clears, lane.stream.status.gaps) == ({0, 1, 2}, 0, 0)


def test_a_reconnect_during_a_replay_is_looked_into_afterwards() -> None:
    lane, log = Lane(), [frame(0), frame(1)]
    lane.do(lane.stream.connected())
    lane.do(lane.stream.connected())
    lane.replay(log)
    assert lane.wanted == 1
    lane.replay(log)
    assert (lane.state, lane.wanted) == (StreamState.LIVE, None)


def test_a_reconnect_during_a_replay_that_fails_is_looked_into_as_well() -> None:
    lane = Lane()
    lane.join([frame(0), frame(1)])
    lane.do(lane.stream.check())
    lane.do(lane.stream.connected())
    lane.fail()
    assert lane.wanted == 1
    lane.replay([frame(0, stored(9)), frame(1, stored(10))])
    lane.replay([frame(0, stored(9)), frame(1, stored(10))])
    assert (lane.held, lane.state) == ({9, 10}, StreamState.LIVE)


def test_last_frames_of_the_old_engine_do_not_survive_its_restart() -> None:
    lane, new = Lane(), [frame(0, stored(100)), frame(1, stored(101))]
    lane.join([frame(seq) for seq in range(4)])
    lane.live(frame(5), frame(6))
    lane.replay(new)
    lane.replay(new)
    assert lane.held == {100, 101}


def test_the_same_batch_twice_is_a_duplicate_and_another_under_its_number_a_restart() -> None:
    lane, one = Lane(can_replay=False), frame(1)
    lane.live(frame(0), one, one)
    assert (lane.clears, lane.stream.status.duplicates) == (0, 1)
    lane.live(frame(1, stored(9)))
    assert (lane.clears, lane.held) == (1, {9})


# Trust


def untrusted() -> Lane:
    lane = Lane()
    lane.join([frame(0, stored(1))])
    lane.live(frame(2, stored(2)))
    lane.fail()
    assert lane.state is StreamState.UNTRUSTED
    return lane


def test_all_blocks_cleared_makes_a_lane_trusted_again() -> None:
    lane = untrusted()
    lane.live(frame(3, stored(3), AllBlocksCleared(), stored(4)))
    assert (lane.held, lane.state, lane.stream.status.reason) == ({4}, StreamState.LIVE, None)
    assert lane.stream.status.lost == 1


@pytest.mark.parametrize("whole", ["from batch 0", "by a snapshot"])
def test_a_replay_of_everything_makes_a_lane_trusted_again(whole: str) -> None:
    lane = untrusted()
    log = [frame(0, stored(1)), frame(1, removed(1)), frame(2, stored(2))]
    if whole == "by a snapshot":
        log = [frame(2, AllBlocksCleared(), stored(2))]
    lane.do(lane.stream.check())
    lane.live(frame(3))
    assert 3 in lane.held, "while nothing has come of it, live batches go on"
    lane.replay([*log, frame(3)])
    assert (lane.held, lane.state) == ({2, 3}, StreamState.LIVE)


def test_a_log_that_has_lost_its_beginning_makes_nothing_better() -> None:
    lane, log = Lane(), [frame(5), frame(6), frame(8)]
    lane.join(log[:1])
    lane.live(log[2])
    lane.replay([log[0], log[2]])
    lane.do(lane.stream.check())
    lane.replay([log[0], log[2]])
    assert (lane.held, lane.clears, lane.state) == ({5, 8}, 0, StreamState.UNTRUSTED)


# Batches nobody can read


def test_a_batch_that_cannot_be_read_is_counted_and_its_number_passes() -> None:
    lane = Lane()
    lane.join([frame(0)])
    lane.live(frame(1, payload=b"\xc1"), frame(2))
    status = lane.stream.status
    assert (lane.held, status.rejected_batches, status.gaps, status.last_seq) == ({0, 2}, 1, 0, 2)


# Against a world


class World(RuleBasedStateMachine):
    """An engine that stores, removes, clears, loses live batches, restarts; a network that delays, breaks, reconnects.

    Whatever happens: once the engine answers again and has been asked, the lane holds what the engine holds.
    """

    def __init__(self) -> None:
        super().__init__()
        self.lane = Lane()
        self.in_flight: list[Frame] = []
        self.answers: list[Frame | None] = []
        self.answering: int | None = None
        self.start_engine()
        self.lane.do(self.lane.stream.connected())

    def start_engine(self) -> None:
        self.log: list[Frame] = []
        self.engine: set[int] = set()

    @rule(name=st.integers(0, 3), lost=st.booleans())
    def publish(self, name: int, *, lost: bool) -> None:
        event: Event = removed(name) if name in self.engine else stored(name)
        self.engine ^= {name}
        self.send(event, lost=lost)

    @rule(lost=st.booleans())
    def flush(self, *, lost: bool) -> None:
        self.engine.clear()
        self.send(AllBlocksCleared(), lost=lost)

    def send(self, event: Event, *, lost: bool) -> None:
        self.log.append(frame(len(self.log), event))
        if not lost:
            self.in_flight.append(self.log[-1])

    @precondition(lambda self: self.in_flight)
    @rule()
    def deliver(self) -> None:
        self.lane.live(self.in_flight.pop(0))

    @precondition(lambda self: self.lane.wanted is not None)
    @rule()
    def ask(self) -> None:
        start, self.lane.wanted = self.lane.wanted, None
        assert start is not None
        self.answers = [*self.log[start:], None]

    @precondition(lambda self: self.answers and self.lane.wanted is None)
    @rule()
    def answer(self) -> None:
        reply = self.answers.pop(0)
        stream = self.lane.stream
        self.lane.do(stream.replay_ended() if reply is None else stream.replayed(reply))

    @precondition(lambda self: self.answers and self.lane.wanted is None)
    @rule()
    def break_off(self) -> None:
        self.answers = []
        again = self.lane.stream.replay_again()
        assert again is not None
        self.lane.do([again])

    @precondition(lambda self: self.answers or self.lane.wanted is not None)
    @rule()
    def give_up(self) -> None:
        self.answers, self.lane.wanted = [], None
        self.lane.do(self.lane.stream.replay_failed("it did not answer"))

    @rule(stale=st.booleans())
    def restart(self, *, stale: bool) -> None:
        """The old engine's last frames may still be on their way when the new one's connection stands."""
        if not stale:
            self.in_flight.clear()
        if self.answers:
            self.break_off()
        self.start_engine()
        self.lane.do(self.lane.stream.connected())

    @rule()
    def reconnect(self) -> None:
        self.lane.do(self.lane.stream.connected())

    def teardown(self) -> None:
        while self.in_flight:
            self.deliver()
        for _ in range(3):
            self.lane.do(self.lane.stream.connected())
            self.work_off()
            self.lane.do(self.lane.stream.check())
            self.work_off()
        assert self.lane.held == self.engine
        assert self.lane.stream.last_seq == len(self.log) - 1
        assert self.lane.state is StreamState.LIVE

    def work_off(self) -> None:
        for _ in range(10_000):
            if self.lane.wanted is not None:
                self.ask()
            elif self.answers:
                self.answer()
            else:
                return
        raise AssertionError("questions without end")


TestWorld = World.TestCase
TestWorld.settings = settings(max_examples=150, stateful_step_count=40)
