"""The far ends of a publisher as tests play them: a live subscriber, a replay reader; and waiting with a deadline."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import zmq
from patience import PATIENCE

from contract.endpoint import needs_ipv6
from contract.events import AllBlocksCleared, BlockRemoved, decode_batch
from contract.framing import Frame, parse_live, parse_replay_reply, replay_request
from contract.kv_events_config import KVEventsConfig
from publisher import EventPublisher

Socket = zmq.Socket[bytes]


def removal(number: int) -> BlockRemoved:
    """An event that tells its number to ``number_in``."""
    return BlockRemoved(block_hashes=[number], medium="GPU")


def number_in(payload: bytes) -> int:
    """The number of a batch that holds one ``removal``."""
    (event,) = decode_batch(payload).events
    assert isinstance(event, BlockRemoved)
    (number,) = event.block_hashes
    assert isinstance(number, int)
    return number


def recorded(path: Path) -> list[Frame]:
    """The frames of a recording."""
    lines = map(json.loads, path.read_text().splitlines())
    return [Frame(line["topic"].encode(), line["seq"], base64.b64decode(line["payload_b64"])) for line in lines]


def until(condition: Callable[[], bool], what: str) -> None:
    """Return once the condition holds; fail where it never does."""
    deadline = time.monotonic() + PATIENCE
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < deadline, f"not within {PATIENCE:g} s: {what}"
        pause.wait(0.002)


class Listener:
    """A SUB socket."""

    def __init__(self, socket: Socket) -> None:
        self.socket = socket

    def receive(self) -> Frame:
        return parse_live(self.socket.recv_multipart())

    def receive_up_to(self, seq: int) -> list[Frame]:
        """Everything until the batch of that number has come."""
        frames = [self.receive()]
        while frames[-1].seq < seq:
            frames.append(self.receive())
        return frames

    def join(self, publisher: EventPublisher) -> None:
        """Publish until this subscription is known to be in effect, and take what came of it."""

        def joined() -> bool:
            publisher.publish([AllBlocksCleared()])
            return bool(self.socket.poll(20))

        until(joined, "the subscription is in effect")
        self.receive_up_to(publisher.last_seq)


class Reader:
    """A DEALER socket that asks for replays."""

    def __init__(self, socket: Socket) -> None:
        self.socket = socket

    def ask(self, start: int) -> None:
        self.socket.send_multipart(replay_request(start))

    def answer(self) -> list[Frame]:
        """Batches up to the end marker."""
        frames = []
        while (frame := parse_replay_reply(self.socket.recv_multipart())) is not None:
            frames.append(frame)
        return frames

    def replay(self, start: int) -> list[Frame]:
        self.ask(start)
        return self.answer()


@contextmanager
def published(*, dp_rank: int = 0, **fields: Any) -> Iterator[EventPublisher]:
    """Our own publisher, on loopback ports of the system's choice unless told otherwise."""
    local = {"endpoint": "tcp://127.0.0.1:0", "replay_endpoint": "tcp://127.0.0.1:0", "bind": True}
    publisher = EventPublisher(KVEventsConfig(publisher="zmq", **(local | fields)), dp_rank=dp_rank)
    try:
        yield publisher
    finally:
        publisher.close()


class Peers:
    """Makes far ends, and closes them all at the end of the test."""

    def __init__(self) -> None:
        self.context: zmq.Context[Socket] = zmq.Context()
        self._sockets: list[Socket] = []

    def socket(self, kind: int, endpoint: str) -> Socket:
        """A socket that is ready to bind or connect, and that gives up in time."""
        socket = self.context.socket(kind)
        self._sockets.append(socket)
        socket.rcvtimeo = int(PATIENCE * 1000)
        socket.linger = 0
        socket.ipv6 = needs_ipv6(endpoint)
        return socket

    def listener(self, endpoint: str, *, topic: bytes = b"", bind: bool = False, rcvhwm: int = 0) -> Listener:
        socket = self.socket(zmq.SUB, endpoint)
        socket.rcvhwm = rcvhwm
        socket.subscribe(topic)
        (socket.bind if bind else socket.connect)(endpoint)
        return Listener(socket)

    def reader(self, endpoint: str | None, *, identity: bytes | None = None, rcvhwm: int = 0) -> Reader:
        assert endpoint is not None, "the publisher answers no replay requests"
        socket = self.socket(zmq.DEALER, endpoint)
        socket.rcvhwm = rcvhwm
        if identity is not None:
            socket.identity = identity
        socket.connect(endpoint)
        return Reader(socket)

    def close(self) -> None:
        for socket in self._sockets:
            socket.close()
        self.context.term()
