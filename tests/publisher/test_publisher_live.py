"""The live stream: the recorded bytes, numbers without gaps or with visible ones, and an engine that never waits."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from patience import PATIENCE
from publisher_peers import Peers, number_in, recorded, removal, until

from contract.events import BlockRemoved, Dialect, decode_batch
from publisher import EventPublisher, PublisherError

Start = Callable[..., EventPublisher]

RECORDINGS = {
    "sglang-page1": Dialect.SGLANG,
    "sglang-page16": Dialect.SGLANG,
    "sglang-page64": Dialect.SGLANG,
    "sglang-page16-batched": Dialect.SGLANG,
    "sglang-page16-tiers": Dialect.SGLANG,
    "sglang-page4-bigram": Dialect.SGLANG,
    "sglang-page4-namespaces": Dialect.SGLANG,
    "sglang-page4-wide-tokens": Dialect.SGLANG,
    "vllm-dcp4": Dialect.VLLM,
    "vllm-dcp1-bytes": Dialect.VLLM,
    "vllm-extra": Dialect.VLLM,
    "vllm-hybrid-swa": Dialect.VLLM,
}


@pytest.mark.parametrize(("name", "dialect"), RECORDINGS.items())
def test_recorded_batches_leave_byte_for_byte(
    start: Start, peers: Peers, golden_dir: Path, name: str, dialect: Dialect
) -> None:
    frames = recorded(golden_dir / f"{name}.jsonl")
    batches = [decode_batch(frame.payload) for frame in frames]
    now = 0.0
    publisher = start(topic=frames[0].topic.decode(), dialect=dialect, clock=lambda: now)
    listener = peers.listener(publisher.endpoint)
    listener.join(publisher)
    first = publisher.last_seq + 1
    for batch in batches:
        now = batch.ts
        publisher.publish(batch.events)  # type: ignore[arg-type]
    live = listener.receive_up_to(publisher.last_seq)
    assert [(frame.topic, frame.seq - first, frame.payload) for frame in live] == [
        (frame.topic, frame.seq, frame.payload) for frame in frames
    ]


def test_a_topic_prefix_selects_and_another_does_not(start: Start, peers: Peers) -> None:
    publisher = start(topic="kv-events")
    other = peers.listener(publisher.endpoint, topic=b"other")
    listener = peers.listener(publisher.endpoint, topic=b"kv")
    listener.join(publisher)
    publisher.publish([removal(1)])
    assert listener.receive().topic == b"kv-events"
    assert other.socket.poll(0) == 0


def test_nothing_to_say_sends_nothing_and_takes_no_number(start: Start) -> None:
    publisher = start()
    publisher.publish([])
    publisher.publish([BlockRemoved(block_hashes=[2**64])])
    assert publisher.last_seq == -1
    publisher.publish([removal(1)])
    assert publisher.last_seq == 0
    assert publisher.counters.encode_errors == 1


def test_batches_of_many_threads_are_numbered_without_gaps(start: Start, peers: Peers) -> None:
    publisher = start()

    def publish(worker: int) -> None:
        for step in range(200):
            publisher.publish([removal(worker * 200 + step)])

    threads = [threading.Thread(target=publish, args=(worker,)) for worker in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    frames = peers.reader(publisher.replay_endpoint).replay(0)
    assert [frame.seq for frame in frames] == list(range(800))
    numbers = [number_in(frame.payload) for frame in frames]
    assert sorted(numbers) == list(range(800))
    for worker in range(4):
        own = [number for number in numbers if number // 200 == worker]
        assert own == sorted(own), "one thread's batches keep their order"


def test_a_full_queue_leaves_a_visible_gap_that_replay_fills(start: Start, peers: Peers) -> None:
    publisher = start(max_queue_size=2, buffer_steps=1_000_000)
    listener = peers.listener(publisher.endpoint)
    listener.join(publisher)
    first = publisher.last_seq + 1

    def skips() -> bool:
        for _ in range(100):
            publisher.publish([removal(publisher.last_seq + 1)])
        return publisher.counters.skipped > 0

    until(skips, "the sender lags")
    live = {frame.seq: frame.payload for frame in listener.receive_up_to(publisher.last_seq)}
    missing = [seq for seq in range(first, publisher.last_seq + 1) if seq not in live]
    assert len(missing) == publisher.counters.skipped
    assert publisher.counters.published == publisher.last_seq + 1
    until(lambda: publisher.counters.sent == publisher.last_seq + 1 - len(missing), "what was sent is counted")
    replayed = {frame.seq: frame.payload for frame in peers.reader(publisher.replay_endpoint).replay(missing[0])}
    assert list(replayed) == list(range(missing[0], publisher.last_seq + 1))
    for seq in range(first, publisher.last_seq + 1):
        assert number_in((replayed | live)[seq]) == seq
    assert all(live[seq] == replayed[seq] for seq in live if seq >= missing[0])


def test_a_subscriber_that_does_not_read_holds_up_nobody(start: Start, peers: Peers, tmp_path: Path) -> None:
    publisher = start(
        endpoint=f"ipc://{tmp_path}/live", replay_endpoint=f"ipc://{tmp_path}/replay", hwm=200, buffer_steps=5000
    )
    slow = peers.listener(publisher.endpoint, rcvhwm=1)
    slow.join(publisher)
    quick = peers.listener(publisher.endpoint)
    quick.join(publisher)
    first = publisher.last_seq + 1
    filler = [removal(number) for number in range(100)]
    for _ in range(1000):
        publisher.publish(filler)
        assert quick.receive().seq == publisher.last_seq
    seen = [slow.receive().seq]
    while slow.socket.poll(50):
        seen.append(slow.receive().seq)
    assert len(seen) < 1000, "the slow one lost batches, as ZMQ does past its high-water mark"
    frames = peers.reader(publisher.replay_endpoint).replay(first)
    assert [frame.seq for frame in frames] == list(range(first, publisher.last_seq + 1))


def test_closing_sends_what_is_in_the_log(start: Start, peers: Peers) -> None:
    publisher = start()
    listener = peers.listener(publisher.endpoint)
    listener.join(publisher)
    first = publisher.last_seq + 1
    for number in range(2000):
        publisher.publish([removal(number)])
    publisher.close(timeout=PATIENCE)
    frames = listener.receive_up_to(publisher.last_seq)
    assert [frame.seq for frame in frames] == list(range(first, first + 2000))


def test_a_closed_publisher_refuses_to_publish_and_closes_again_without_a_word(start: Start) -> None:
    publisher = start()
    publisher.close()
    publisher.close()
    with pytest.raises(PublisherError, match="the publisher is closed"):
        publisher.publish([removal(1)])
    assert publisher.counters.published == 0


def test_closing_frees_the_endpoints(start: Start, peers: Peers) -> None:
    first = start()
    first.publish([removal(1)])
    first.close()
    second = start(endpoint=first.endpoint, replay_endpoint=first.replay_endpoint)
    second.publish([removal(2)])
    (frame,) = peers.reader(second.replay_endpoint).replay(0)
    assert (frame.seq, number_in(frame.payload)) == (0, 2)


def test_closing_is_bounded_whatever_a_subscriber_does(start: Start, peers: Peers, tmp_path: Path) -> None:
    publisher = start(endpoint=f"ipc://{tmp_path}/live", replay_endpoint=None)
    stuck = peers.listener(publisher.endpoint, rcvhwm=1)
    stuck.join(publisher)
    filler = [removal(number) for number in range(1000)]
    for _ in range(300):
        publisher.publish(filler)
    publisher.close(timeout=0.3)
    assert not publisher.alive
