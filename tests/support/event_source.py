"""An engine's side of the wire as a test plays it, on real sockets: PUB, and a ROUTER that answers replays."""

from __future__ import annotations

import asyncio
import itertools
from types import TracebackType
from typing import Literal, Self

import zmq
import zmq.asyncio
from patience import in_time

from contract.events import BlockRemoved, BlockStored, Dialect, Event, encode_batch
from contract.framing import Frame, FramingError, parse_replay_request, pub_frames, replay_end, replay_reply
from router.intake.index import BlockIndex, LaneHandle

WIDTH = 6
Replies = Literal["four frames", "three frames", "never", "nonsense"]
_STAMPS = itertools.count()


def stored(name: int) -> BlockStored:
    return BlockStored(
        block_hashes=[name], parent_block_hash=None, token_ids=[name] * WIDTH, block_size=WIDTH, medium="GPU"
    )


class EventSource:
    """Publishes batches; each may be lost on the live side. ``restart`` is another engine on the same ports."""

    def __init__(
        self, *, topic: str = "", replies: Replies = "four frames", replay: bool = True, host: str = "127.0.0.1"
    ) -> None:
        self._topic = topic.encode()
        self.replies = replies
        self._host = host
        self._ports = (0, 0 if replay else None)
        self.requests: list[int] = []

    async def __aenter__(self) -> Self:
        self._open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    @property
    def endpoint(self) -> str:
        return f"tcp://{self._host}:{self._ports[0]}"

    @property
    def replay_endpoint(self) -> str | None:
        return None if self._ports[1] is None else f"tcp://{self._host}:{self._ports[1]}"

    def _open(self) -> None:
        self._context = zmq.asyncio.Context()
        self.log: list[Frame] = []
        self.last_seq = -1
        self.held: set[int] = set()
        self._pub = self._socket(zmq.XPUB)
        self.sent = 0
        port = self._bind(self._pub, self._ports[0])
        self._task: asyncio.Task[None] | None = None
        replay_port = self._ports[1]
        if replay_port is not None:
            router = self._socket(zmq.ROUTER)
            replay_port = self._bind(router, replay_port)
            self._task = asyncio.create_task(self._answer(router))
        self._ports = (port, replay_port)

    def _socket(self, kind: int) -> zmq.asyncio.Socket:
        socket = self._context.socket(kind)
        socket.setsockopt(zmq.IPV6, self._host.startswith("["))
        socket.setsockopt(zmq.LINGER, 0)
        return socket

    def _bind(self, socket: zmq.asyncio.Socket, port: int) -> int:
        socket.bind(f"tcp://{self._host}:{port or '*'}")
        return int(socket.getsockopt_string(zmq.LAST_ENDPOINT).rpartition(":")[2])

    async def stop(self) -> None:
        """The engine dies; its ports stay its own."""
        self._pub.close(linger=0)
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._context.destroy(linger=0)  # which waits until the ports are free

    def start_again(self) -> None:
        """Another engine stands where the one before did, and holds nothing."""
        self._open()

    async def publish(self, *events: Event, lost: bool = False) -> None:
        """Send a batch of these events."""
        for event in events:
            if isinstance(event, BlockStored):
                self.held.update(name for name in event.block_hashes if isinstance(name, int))
            elif isinstance(event, BlockRemoved):
                self.held.difference_update(event.block_hashes)
            else:
                self.held.clear()
        await self.publish_payload(encode_batch(events, ts=next(_STAMPS), dp_rank=0, dialect=Dialect.SGLANG), lost=lost)

    async def publish_payload(self, payload: bytes, *, lost: bool = False) -> None:
        """Send a batch as some engine encoded it; ``held`` does not follow."""
        await self.relay(Frame(self._topic, self.last_seq + 1, payload), lost=lost)

    async def relay(self, frame: Frame, *, lost: bool = False) -> None:
        """Send a frame as it is, under its own number, and remember it for replays."""
        self.log.append(frame)
        self.last_seq = frame.seq
        if not lost:
            await self.send_raw(*pub_frames(frame))

    async def subscribed(self) -> None:
        """Return once a subscription is in effect, of those that nobody has waited for."""
        assert (await in_time(self._pub.recv())).startswith(b"\x01"), "somebody has left"

    def forget(self) -> None:
        """Have nothing to replay any more; numbers go on."""
        self.log.clear()

    async def send_raw(self, *frames: bytes) -> None:
        """Send a message that may be no batch."""
        self.sent += 1
        await self._pub.send_multipart(frames)

    async def send_again(self, seq: int) -> None:
        """Send a batch live that was sent before, or lost."""
        await self.send_raw(*pub_frames(next(frame for frame in self.log if frame.seq == seq)))

    async def _answer(self, router: zmq.asyncio.Socket) -> None:
        try:
            while True:
                request = await router.recv_multipart()
                for reply in self.answers(request):
                    await router.send_multipart([request[0], *reply])
        finally:
            router.close(linger=0)

    def answers(self, request: list[bytes]) -> list[list[bytes]]:
        """The messages that a request is answered by, without the identity; a malformed one gets none."""
        try:
            _, start = parse_replay_request(request)
        except FramingError:
            return []
        self.requests.append(start)
        if self.replies == "never":
            return []
        if self.replies == "nonsense":
            return [[b"what?"]]
        replies = [*(replay_reply(frame) for frame in self.log if frame.seq >= start), replay_end()]
        return [[reply[0], *reply[2:]] for reply in replies] if self.replies == "three frames" else replies


def holds_the_truth(index: BlockIndex, handle: LaneHandle, source: EventSource) -> bool:
    """Whether the index holds exactly what the engine holds."""
    return {row.hash for row in index.blocks(handle)} == source.held
