"""Replay: the recorded exchanges frame for frame, and readers that are slow, gone, wrong or too many."""

from __future__ import annotations

import base64
import json
import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zmq
from publisher_peers import Peers, Reader, number_in, recorded, removal, until

from contract.events import Dialect, decode_batch
from publisher import EventPublisher, ReplayLimits

Start = Callable[..., EventPublisher]
RawFrames = list[bytes]

REPLAYED = ["sglang-page1", "sglang-page16", "sglang-page64", "vllm-dcp4", "vllm-dcp1-bytes", "vllm-extra"]


def unpack(frames: list[str]) -> RawFrames:
    return [base64.b64decode(frame) for frame in frames]


def exchanges(path: Path) -> Iterator[tuple[str, RawFrames, list[RawFrames]]]:
    """Socket kind, request and reply messages of each recorded exchange."""
    document = json.loads(path.read_text())
    for exchange in document.get("exchanges", [document]):
        replies = exchange.get("response_frames_b64") or exchange["reply_frames_b64"]
        yield exchange["socket"], unpack(exchange["request_frames_b64"]), [unpack(reply) for reply in replies]


@pytest.mark.parametrize("name", REPLAYED)
def test_recorded_exchanges_are_answered_frame_for_frame(
    start: Start, peers: Peers, golden_dir: Path, name: str
) -> None:
    frames = recorded(golden_dir / f"{name}.jsonl")
    batches = [decode_batch(frame.payload) for frame in frames]
    publisher = start(
        topic=frames[0].topic.decode(),
        dialect=Dialect.SGLANG if name.startswith("sglang") else Dialect.VLLM,
        clock=iter([batch.ts for batch in batches]).__next__,
    )
    for batch in batches:
        publisher.publish(batch.events)  # type: ignore[arg-type]
    assert publisher.replay_endpoint is not None
    for kind, request, replies in exchanges(golden_dir / f"{name}.replay.json"):
        socket = peers.socket(zmq.REQ if kind.startswith("REQ") else zmq.DEALER, publisher.replay_endpoint)
        socket.connect(publisher.replay_endpoint)
        socket.send_multipart(request)
        # A REQ socket strips the delimiter, and can read no more than the first reply.
        expected = [reply[1:] for reply in replies] if kind.startswith("REQ") and not replies[0][0] else replies
        assert [socket.recv_multipart() for _ in expected] == expected
        assert socket.poll(0) == 0


def test_a_start_beyond_the_end_is_answered_by_the_end_alone(start: Start, peers: Peers) -> None:
    publisher = start()
    publisher.publish([removal(0)])
    reader = peers.reader(publisher.replay_endpoint)
    assert reader.replay(1) == []
    assert reader.replay(2**64 - 1) == []
    until(lambda: publisher.counters.replays == 2, "both are counted")


def test_an_empty_log_is_answered_by_the_end_alone(start: Start, peers: Peers) -> None:
    assert peers.reader(start().replay_endpoint).replay(0) == []


def test_a_start_older_than_the_log_gets_what_is_left_and_the_rest_is_counted(start: Start, peers: Peers) -> None:
    publisher = start(buffer_steps=3)
    for number in range(10):
        publisher.publish([removal(number)])
    until(lambda: publisher.counters.sent == 10, "all batches are out")
    assert [frame.seq for frame in peers.reader(publisher.replay_endpoint).replay(0)] == [7, 8, 9]
    assert publisher.counters.replay_missing == 7


MALFORMED = [[b"no delimiter"], [b"", b"\0" * 8, b"one too many"], [b"", b"\0" * 9], [b"not empty", b"\0" * 8]]


def test_malformed_requests_are_counted_logged_once_and_not_answered(
    start: Start, peers: Peers, caplog: pytest.LogCaptureFixture
) -> None:
    publisher = start()
    publisher.publish([removal(0)])
    reader = peers.reader(publisher.replay_endpoint)
    with caplog.at_level(logging.WARNING):
        for request in MALFORMED:
            reader.socket.send_multipart(request)
        assert [frame.seq for frame in reader.replay(0)] == [0], "the first answer is to the good request"
    assert publisher.counters.malformed_requests == len(MALFORMED)
    assert [record.getMessage() for record in caplog.records] == [
        "replay request not answered, 1 so far: a replay request is identity, empty, start; got 2 frames"
    ]


def test_an_idle_publisher_answers_at_once(start: Start, peers: Peers) -> None:
    publisher = start()
    reader = peers.reader(publisher.replay_endpoint)
    reader.replay(0)

    def answered_at_once() -> bool:
        began = time.monotonic()
        reader.replay(0)
        return time.monotonic() - began < 0.05

    until(answered_at_once, "an answer before the 100 ms after which other engines look for requests")


@pytest.fixture
def crowded(start: Start, peers: Peers, tmp_path: Path) -> Callable[..., tuple[EventPublisher, Reader]]:
    """A publisher with 200 large batches, and a reader that asked for all of them and reads none."""

    def crowded(**limits: float) -> tuple[EventPublisher, Reader]:
        publisher = start(
            endpoint=f"ipc://{tmp_path}/live",
            replay_endpoint=f"ipc://{tmp_path}/replay",
            limits=ReplayLimits(queue=4, **limits),  # type: ignore[arg-type]
        )
        filler = [removal(number) for number in range(1000)]
        for _ in range(200):
            publisher.publish(filler)
        slow = peers.reader(publisher.replay_endpoint, identity=b"slow", rcvhwm=1)
        slow.ask(0)
        until(lambda: publisher.counters.replayed > 0, "the slow reader's replay has begun")
        return publisher, slow

    return crowded


def test_a_slow_reader_holds_up_neither_live_traffic_nor_other_readers(
    crowded: Callable[..., tuple[EventPublisher, Reader]], peers: Peers
) -> None:
    publisher, slow = crowded()
    listener = peers.listener(publisher.endpoint)
    listener.join(publisher)
    publisher.publish([removal(7)])
    assert number_in(listener.receive().payload) == 7
    everything = list(range(publisher.last_seq + 1))
    assert [frame.seq for frame in peers.reader(publisher.replay_endpoint).replay(0)] == everything
    until(lambda: publisher.counters.replays == 1, "the quick replay is counted, the slow one still at it")
    assert [frame.seq for frame in slow.answer()] == list(range(200)), "and gets what there was when it asked"
    assert publisher.counters.replays_dropped == 0


def test_a_reader_that_accepts_nothing_is_given_up(
    crowded: Callable[..., tuple[EventPublisher, Reader]], caplog: pytest.LogCaptureFixture
) -> None:
    publisher, _ = crowded(stall_seconds=0.1)
    said = "replay given up, 1 so far: the reader accepted nothing for 0.1 s"
    until(lambda: said in caplog.text, "the reader is given up")
    assert (publisher.counters.replays, publisher.counters.replays_dropped) == (0, 1)


def test_a_reader_that_leaves_is_given_up(crowded: Callable[..., tuple[EventPublisher, Reader]]) -> None:
    publisher, slow = crowded()
    slow.socket.close(linger=0)
    until(lambda: publisher.counters.replays_dropped == 1, "the reader is given up")


def test_requests_beyond_the_limit_wait_for_a_place(
    crowded: Callable[..., tuple[EventPublisher, Reader]], peers: Peers
) -> None:
    publisher, slow = crowded(sessions=1)
    second = peers.reader(publisher.replay_endpoint)
    second.ask(198)
    assert second.socket.poll(50) == 0
    assert [frame.seq for frame in slow.answer()] == list(range(200))
    assert [frame.seq for frame in second.answer()] == [198, 199]


def test_a_second_request_takes_the_place_of_the_readers_first(
    crowded: Callable[..., tuple[EventPublisher, Reader]],
) -> None:
    _, slow = crowded()
    slow.ask(199)
    *first, last = [frame.seq for frame in slow.answer()]
    assert (first, last) == (list(range(len(first))), 199)
    assert len(first) < 199, "the first replay was cut short"
