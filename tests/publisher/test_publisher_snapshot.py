"""Replays that reach further back than the log: answered from a snapshot, or from what there is when it fails."""

from __future__ import annotations

import threading
from array import array
from collections.abc import Callable, Iterator

import pytest
from publisher_peers import Peers, removal, until

from contract.events import AllBlocksCleared, BlockStored, decode_batch
from publisher import EventPublisher, ReplayLimits, Snapshot

Start = Callable[..., EventPublisher]
Hook = Callable[[], Snapshot]

IDS = array("I", range(12))  # as they are read again
HELD = BlockStored(block_hashes=[8, 9], parent_block_hash=None, token_ids=IDS, block_size=6, medium="GPU")


@pytest.fixture
def start_with_ten(start: Start) -> Callable[..., EventPublisher]:
    """Ten batches published, the last three still in the log."""

    def start_with_ten(snapshot: Hook, *, seconds: float = 10.0) -> EventPublisher:
        publisher = start(buffer_steps=3, snapshot=snapshot, limits=ReplayLimits(snapshot_seconds=seconds))
        for number in range(10):
            publisher.publish([removal(number)])
        until(lambda: publisher.counters.sent == 10, "all batches are out")
        return publisher

    return start_with_ten


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """Holds a hook back; open at the latest when the test is over."""
    gate = threading.Event()
    yield gate
    gate.set()


@pytest.mark.parametrize(("seq", "log"), [(9, []), (8, [9]), (6, [7, 8, 9])])
def test_a_request_older_than_the_log_gets_a_snapshot_and_the_log_after_it(
    start_with_ten: Start, peers: Peers, seq: int, log: list[int]
) -> None:
    publisher = start_with_ten(lambda: Snapshot(seq, [HELD]))
    snapshot, *rest = peers.reader(publisher.replay_endpoint).replay(0)
    assert snapshot.seq == seq
    assert decode_batch(snapshot.payload).events == [AllBlocksCleared(), HELD]
    assert [frame.seq for frame in rest] == log
    until(lambda: publisher.counters.replays == 1, "the replay is counted")
    counters = publisher.counters
    assert (counters.snapshots, counters.replayed, counters.replay_missing) == (1, 1 + len(log), 0)


def test_a_snapshot_older_than_the_log_leaves_a_visible_gap(start_with_ten: Start, peers: Peers) -> None:
    publisher = start_with_ten(lambda: Snapshot(4, [HELD]))
    frames = peers.reader(publisher.replay_endpoint).replay(0)
    assert [frame.seq for frame in frames] == [4, 7, 8, 9]
    assert publisher.counters.replay_missing == 2


@pytest.mark.parametrize("start_seq", [7, 9, 10, 11])
def test_a_request_the_log_can_answer_asks_for_no_snapshot(start_with_ten: Start, peers: Peers, start_seq: int) -> None:
    def refuse() -> Snapshot:
        raise AssertionError("the hook was called")

    publisher = start_with_ten(refuse)
    frames = peers.reader(publisher.replay_endpoint).replay(start_seq)
    assert [frame.seq for frame in frames] == list(range(start_seq, 10))
    assert publisher.counters.snapshot_errors == 0


def fails() -> Snapshot:
    raise RuntimeError("the tree is busy")


@pytest.mark.parametrize(
    ("hook", "said"),
    [
        (fails, "RuntimeError: the tree is busy"),
        (lambda: Snapshot(10, []), "PublisherError: the snapshot's batch 10 is outside [0, 9]"),
        (lambda: Snapshot(-1, []), "PublisherError: the snapshot's batch -1 is outside [0, 9]"),
    ],
)
def test_a_hook_that_fails_leaves_what_the_log_has(
    start_with_ten: Start, peers: Peers, caplog: pytest.LogCaptureFixture, hook: Hook, said: str
) -> None:
    publisher = start_with_ten(hook)
    reader = peers.reader(publisher.replay_endpoint)
    for _ in range(2):
        assert [frame.seq for frame in reader.replay(0)] == [7, 8, 9]
    assert publisher.counters.snapshot_errors == 2
    assert [record.getMessage() for record in caplog.records] == [f"replay without a snapshot, 1 so far: {said}"]


def test_a_hook_that_hangs_holds_up_nothing_and_is_not_called_twice(
    start_with_ten: Start, peers: Peers, gate: threading.Event
) -> None:
    calls: list[int] = []

    def hang() -> Snapshot:
        calls.append(1)
        gate.wait()
        return Snapshot(9, [])

    publisher = start_with_ten(hang, seconds=0.2)
    reader = peers.reader(publisher.replay_endpoint)
    reader.ask(0)
    listener = peers.listener(publisher.endpoint)
    listener.join(publisher)
    assert peers.reader(publisher.replay_endpoint).replay(publisher.last_seq)[0].seq == publisher.last_seq
    assert all(frame.seq >= 7 for frame in reader.answer())
    peers.reader(publisher.replay_endpoint).replay(0)
    assert len(calls) == 1
    assert publisher.counters.snapshot_errors == 2


def test_readers_that_ask_together_share_one_snapshot(
    start_with_ten: Start, peers: Peers, gate: threading.Event
) -> None:
    calls: list[threading.Thread] = []

    def take() -> Snapshot:
        calls.append(threading.current_thread())
        gate.wait()
        return Snapshot(9, [HELD])

    publisher = start_with_ten(take)
    readers = [peers.reader(publisher.replay_endpoint) for _ in range(3)]
    for reader in readers:
        reader.ask(0)
    prompt = peers.reader(publisher.replay_endpoint)
    until(lambda: bool(calls), "the hook is called")
    assert [frame.seq for frame in prompt.replay(9)] == [9]
    gate.set()
    for reader in readers:
        assert [frame.seq for frame in reader.answer()] == [9]
    assert len(calls) <= 3


def test_the_hook_runs_neither_on_the_engines_thread_nor_on_the_senders(start_with_ten: Start, peers: Peers) -> None:
    names: list[str] = []

    def take() -> Snapshot:
        names.append(threading.current_thread().name)
        return Snapshot(9, [])

    peers.reader(start_with_ten(take).replay_endpoint).replay(0)
    assert names == ["kv-snapshot"]
