"""Frames between an engine and its ranks, on real sockets."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator

import pytest
from patience import PATIENCE

from engine.parallel.channel import Channel, ChannelError, Frame, Kind

Pair = tuple[Channel, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    """A channel, and the bare socket at its other end."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield Channel(ours), theirs


@pytest.mark.parametrize("payload", [b"", b"x", bytes(range(256)) * 5000], ids=len)
def test_frames_arrive_whole_and_in_order(pair: Pair, payload: bytes) -> None:
    sender, socket_ = pair
    receiver = Channel(socket_)
    thread = threading.Thread(target=lambda: [sender.send(kind, payload) for kind in Kind])
    thread.start()
    assert [receiver.receive(timeout=PATIENCE) for _ in Kind] == [Frame(kind, payload) for kind in Kind]
    thread.join()


def test_a_frame_that_comes_in_pieces_is_put_together(pair: Pair) -> None:
    channel, peer = pair
    frame = struct.pack("<IB", 4, Kind.DONE) + b"abc"
    for byte in frame[:-1]:
        peer.send(bytes([byte]))
        with pytest.raises(TimeoutError):
            channel.receive(timeout=0)
    peer.send(frame[-1:])
    assert channel.receive(timeout=0) == Frame(Kind.DONE, b"abc")


def test_the_end_of_a_connection_is_an_error_once_all_frames_are_read(pair: Pair) -> None:
    channel, peer = pair
    Channel(peer).send(Kind.FAILED, b"why")
    peer.close()
    assert channel.receive() == Frame(Kind.FAILED, b"why")
    with pytest.raises(ChannelError, match="closed"):
        channel.receive()
    with pytest.raises(ChannelError, match="lost"):
        channel.send(Kind.TASK)


@pytest.mark.parametrize("head", [(0, Kind.DONE), (2**32 - 1, Kind.DONE), (4, 99)])
def test_what_is_no_frame_is_refused(pair: Pair, head: tuple[int, int]) -> None:
    channel, peer = pair
    peer.send(struct.pack("<IB", *head))
    with pytest.raises(ChannelError, match="not a frame"):
        channel.receive()


def test_a_peer_that_takes_nothing_is_given_up(pair: Pair) -> None:
    channel, _ = pair
    with pytest.raises(TimeoutError):
        channel.send(Kind.TASK, bytes(10_000_000), timeout=0.05)
