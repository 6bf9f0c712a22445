"""Where a publisher can be reached: ranks, schemes, IPv6, who binds, and what is said when it cannot be."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
import zmq
from publisher_peers import Peers, number_in, recorded, removal, until

from contract.endpoint import parse_tcp
from contract.events import decode_batch
from contract.kv_events_config import KVEventsConfig
from publisher import EventPublisher, PublisherError

Start = Callable[..., EventPublisher]


def is_reachable(publisher: EventPublisher, peers: Peers) -> bool:
    """A batch gets through live, and the same one by replay."""
    listener = peers.listener(publisher.endpoint)
    listener.join(publisher)
    publisher.publish([removal(41)])
    live = listener.receive()
    return peers.reader(publisher.replay_endpoint).replay(live.seq) == [live] and number_in(live.payload) == 41


def base_port_of_two() -> int:
    """A port whose successor is free as well, a moment ago."""
    while True:
        with socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", 0))
            port = int(first.getsockname()[1])
            try:
                second.bind(("127.0.0.1", port + 1))
            except OSError:
                continue
            return port


def test_port_0_is_replaced_by_the_port_the_system_chose(start: Start, peers: Peers) -> None:
    publisher = start(endpoint="tcp://127.0.0.1:0", replay_endpoint="tcp://127.0.0.1:0")
    assert parse_tcp(publisher.endpoint).port != 0
    assert publisher.replay_endpoint != publisher.endpoint
    assert is_reachable(publisher, peers)


def test_a_wildcard_host_binds_everywhere_and_stays_a_wildcard(start: Start, peers: Peers) -> None:
    publisher = start(endpoint="tcp://*:0", bind=None)
    port = parse_tcp(publisher.endpoint).port
    assert port != 0
    assert publisher.endpoint == f"tcp://*:{port}"
    listener = peers.listener(f"tcp://127.0.0.1:{port}")
    listener.join(publisher)


def test_without_a_replay_endpoint_there_is_none(start: Start, peers: Peers) -> None:
    publisher = start(replay_endpoint=None)
    assert publisher.replay_endpoint is None
    peers.listener(publisher.endpoint).join(publisher)


def test_ranks_publish_on_base_plus_rank_each_with_its_own_numbers(
    start: Start, peers: Peers, golden_dir: Path
) -> None:
    frames = recorded(golden_dir / "sglang-page16-dp3.jsonl")
    live, replay = base_port_of_two(), base_port_of_two()
    for rank in range(2):
        batches = [frame for frame in frames if decode_batch(frame.payload).dp_rank == rank]
        ts = iter([decode_batch(frame.payload).ts for frame in batches])
        publisher = start(
            endpoint=f"tcp://127.0.0.1:{live}",
            replay_endpoint=f"tcp://127.0.0.1:{replay}",
            topic=batches[0].topic.decode(),
            dp_rank=rank,
            clock=ts.__next__,
        )
        for frame in batches:
            publisher.publish(decode_batch(frame.payload).events)  # type: ignore[arg-type]
        assert publisher.endpoint == f"tcp://127.0.0.1:{live + rank}"
        assert publisher.replay_endpoint == f"tcp://127.0.0.1:{replay + rank}"
        assert peers.reader(publisher.replay_endpoint).replay(0) == batches


@pytest.mark.parametrize("rank", [0, 1, 7])
def test_ipc_works_at_any_rank(start: Start, peers: Peers, tmp_path: Path, rank: int) -> None:
    publisher = start(endpoint=f"ipc://{tmp_path}/live", replay_endpoint=f"ipc://{tmp_path}/replay", dp_rank=rank)
    assert publisher.endpoint == f"ipc://{tmp_path}/live" + (f"_dp{rank}" if rank else "")
    assert is_reachable(publisher, peers)


def test_a_stale_ipc_file_is_no_obstacle(start: Start, peers: Peers, tmp_path: Path) -> None:
    for name in ("live", "replay"):
        with socket.socket(socket.AF_UNIX) as left_behind:
            left_behind.bind(str(tmp_path / name))
    publisher = start(endpoint=f"ipc://{tmp_path}/live", replay_endpoint=f"ipc://{tmp_path}/replay")
    assert is_reachable(publisher, peers)


@pytest.mark.parametrize("rank", [0, 1])
def test_inproc_works_at_any_rank_within_a_shared_context(start: Start, peers: Peers, rank: int) -> None:
    publisher = start(endpoint="inproc://live", replay_endpoint="inproc://replay", dp_rank=rank, context=peers.context)
    assert publisher.endpoint == "inproc://live" + (f"_dp{rank}" if rank else "")
    assert is_reachable(publisher, peers)


def test_ipv6_works(start: Start, peers: Peers) -> None:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError as error:
        pytest.skip(f"no IPv6 loopback on this machine: {error}")
    assert is_reachable(start(endpoint="tcp://[::1]:0", replay_endpoint="tcp://[::1]:0", bind=None), peers)
    everywhere = start(endpoint="tcp://[::]:0", bind=None)
    port = parse_tcp(everywhere.endpoint).port
    for host in ("[::1]", "127.0.0.1"):
        peers.listener(f"tcp://{host}:{port}").join(everywhere)


def test_a_concrete_host_connects_and_says_that_nobody_may_listen(
    start: Start, peers: Peers, caplog: pytest.LogCaptureFixture
) -> None:
    port = base_port_of_two()
    with caplog.at_level(logging.WARNING):
        publisher = start(endpoint=f"tcp://127.0.0.1:{port}", bind=None)
    assert [record.getMessage() for record in caplog.records] == [
        f"events go to tcp://127.0.0.1:{port} by connecting, so a consumer must bind there or nobody listens; "
        '"bind": true binds here'
    ]
    peers.listener(publisher.endpoint, bind=True).join(publisher)


@pytest.mark.parametrize("bind", [True, False])
def test_whoever_decides_about_bind_is_not_warned(start: Start, caplog: pytest.LogCaptureFixture, bind: bool) -> None:
    port = base_port_of_two()
    with caplog.at_level(logging.WARNING):
        start(endpoint=f"tcp://127.0.0.1:{port}", bind=bind)
    assert caplog.records == []


UNUSABLE = {
    "an address of another machine": ("tcp://192.0.2.1:0", 0, "Cannot assign requested address"),
    "a name of nothing": ("tcp://no-such-host.invalid:0", 0, "this machine has no such address or interface"),
    "a directory that is not there": ("ipc:///no/such/directory/socket", 0, "No such file or directory"),
    "a scheme nobody knows": ("carrier-pigeon://roof", 0, "Protocol not supported"),
    "IPv6 without brackets": ("tcp://::1:5557", 0, "needs brackets"),
    "no port": ("tcp://127.0.0.1", 0, "is not tcp://HOST:PORT"),
    "a port that the rank pushes too far": ("tcp://127.0.0.1:65535", 1, "port 65536, above 65535"),
    "a scheme without ranks": ("carrier-pigeon://roof", 1, "is not tcp://HOST:PORT"),
}


@pytest.mark.parametrize("which", ["endpoint", "replay_endpoint"])
@pytest.mark.parametrize(("endpoint", "rank", "cause"), UNUSABLE.values(), ids=UNUSABLE)
def test_an_unusable_endpoint_is_one_line_with_its_name_and_the_cause(
    start: Start, which: str, endpoint: str, rank: int, cause: str
) -> None:
    with pytest.raises(PublisherError) as caught:
        start(**{which: endpoint}, dp_rank=rank)
    message = str(caught.value)
    assert message.startswith(f"cannot bind {endpoint}")
    assert cause in message
    assert "\n" not in message


def test_a_taken_port_is_one_line_and_leaves_nothing_open(start: Start) -> None:
    taken = start().endpoint
    replay = f"tcp://127.0.0.1:{base_port_of_two()}"
    with pytest.raises(PublisherError, match=f"^cannot bind {taken}: Address already in use$"):
        start(endpoint=taken, replay_endpoint=replay)
    with pytest.raises(PublisherError, match=f"^cannot bind {taken}: Address already in use$"):
        start(endpoint=replay, replay_endpoint=taken)
    start(endpoint=replay, replay_endpoint=None)


def test_port_0_cannot_be_connected_to() -> None:
    config = KVEventsConfig(publisher="zmq", endpoint="tcp://127.0.0.1:0", bind=False)
    with pytest.raises(PublisherError, match=r"cannot connect to tcp://127.0.0.1:0 at rank 0: port 0 is for binding"):
        EventPublisher(config)


def test_only_zmq_publishes() -> None:
    with pytest.raises(PublisherError, match="publisher 'null' is not 'zmq', the only one there is"):
        EventPublisher(KVEventsConfig())


def test_a_lent_context_that_goes_away_ends_the_sender_but_not_the_engine(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    lent = zmq.Context[zmq.Socket[bytes]]()
    publisher = start(context=lent, max_queue_size=2)
    with caplog.at_level(logging.WARNING):
        lent.term()
    until(lambda: not publisher.alive, "the sender has ended")
    for number in range(5):
        publisher.publish([removal(number)])
    assert publisher.counters.skipped == 3
    assert "the ZMQ context is gone" in caplog.text
