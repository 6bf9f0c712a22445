"""A link on real sockets: nothing is read that is not taken, and whoever cannot be talked to is told of."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine
from pathlib import Path

import pytest
import uvloop
from patience import in_time, until
from zmtp_peer import greet, greeting, listening, ready, written

from contract.endpoint import EndpointError
from router.intake.link import BYTES_A_TURN, Link, reach, require_reachable
from router.intake.zmtp import ZmtpError, encode_message, subscription

MOST = 2**20
PADDING = bytes(1_000)


async def reached(
    endpoint: str, *, wake: Callable[[], None] = lambda: None, refusals: list[ZmtpError] | None = None
) -> Link:
    told = [] if refusals is None else refusals
    return await in_time(reach(endpoint, "SUB", most_bytes=MOST, wake=wake, on_refusal=told.append))


def message(number: int) -> bytes:
    return encode_message([str(number).encode(), PADDING])


async def test_a_flood_stays_with_its_sender_until_it_is_taken() -> None:
    """However much is sent: what lies here is what one read brought."""
    count, sent = 30_000, 0

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await greet(reader, writer)
        for sent in range(count):
            writer.write(message(sent))
            await writer.drain()
        await reader.read()

    async with listening(flood) as endpoint:
        news = asyncio.Event()
        link = await reached(endpoint, wake=news.set)
        link.send(subscription(""))
        await in_time(news.wait())
        at_hand = len(link._messages)
        for _ in range(1_000):
            await asyncio.sleep(0)
        assert sent < count - 1, "the sender was not held back"
        assert len(link._messages) == at_hand <= 2 * BYTES_A_TURN // len(PADDING)
        taken: list[int] = []

        def take() -> bool:
            while (frames := link.next()) is not None:
                taken.append(int(frames[0]))
            return len(taken) == count

        await until(take, "all of it has come")
        assert taken == list(range(count))
        link.close()


async def test_a_fast_sender_leaves_turns_to_others() -> None:
    """Whoever takes all at once still shares the loop with everybody else."""
    count, taken, turns = 4_000, 0, 0

    async def pour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await greet(reader, writer)
        writer.write(b"".join(map(message, range(count))))
        await reader.read()

    def take() -> None:
        nonlocal taken
        while link.next() is not None:
            taken += 1

    async with listening(pour) as endpoint:
        link = await reached(endpoint, wake=take)
        link.send(subscription(""))
        while taken < count:
            turns += 1
            await asyncio.sleep(0)
        assert turns > 4
        link.close()


async def test_a_peer_that_is_not_there_yet_is_tried_for_until_it_is() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    wanted = asyncio.create_task(reached(f"tcp://127.0.0.1:{port}"))
    await asyncio.sleep(0)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(greeting() + ready("XPUB"))
        await reader.read()

    async with listening(serve, port=port):
        link = await in_time(wanted)
        link.close()
        await in_time(link.closed)


async def test_a_peer_that_cannot_be_talked_to_is_told_of_and_tried_again() -> None:
    calls, refusals = 0, list[ZmtpError]()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            return
        writer.write(greeting() + ready("PULL" if calls == 2 else "PUB"))
        await reader.read()

    async with listening(serve) as endpoint:
        link = await reached(endpoint, refusals=refusals)
        assert [str(error) for error in refusals] == ["the peer is a 'PULL' socket, not PUB or XPUB"]
        link.close()


async def test_what_was_at_hand_when_the_peer_died_can_still_be_taken() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await greet(reader, writer)
        writer.write(message(1) + message(2)[:-1])
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    async with listening(serve) as endpoint:
        link = await reached(endpoint)
        link.send(subscription(""))
        first: list[list[bytes]] = []

        def gone() -> bool:
            frames = link.next()
            if frames is not None:
                first.append(frames)
            return link.closed.done()

        await until(gone, "the peer is gone")
        assert first == [[b"1", PADDING]]
        assert link.next() is None
        link.send([b"into the void"])
        link.close()


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_hanging_up_amid_messages_is_no_fault(run: Callable[[Coroutine[None, None, None]], None]) -> None:
    """Whoever takes a message may hang up on account of it; the event loops differ in what they then forgive."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await greet(reader, writer)
        writer.write(b"".join(map(message, range(2_000))))
        await reader.read()

    async def scenario() -> None:
        faults: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: faults.append(context))
        links: list[Link] = []

        def take_one() -> None:
            link = links[0]
            link.next()
            link.close()
            link.send([b"too late"])

        async with listening(serve) as endpoint:
            links.append(await reached(endpoint, wake=take_one))
            links[0].send(subscription(""))
            await in_time(links[0].closed)
            while links[0].next() is not None:
                pass
            await asyncio.sleep(0)
        assert faults == []

    run(scenario())


async def test_a_peer_that_asks_and_never_reads_is_hung_up_on() -> None:
    """Its answers would pile up here."""
    pings = written(b"\x04PING\x00\x00" + b"x" * 16, command=True) * 10_000

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await greet(reader, writer)
        while True:
            writer.write(pings)
            await writer.drain()

    async with listening(serve) as endpoint:
        link = await reached(endpoint)
        link.send(subscription(""))
        await in_time(link.closed)
        assert str(link.why) == "the peer does not read what it asked for"


@pytest.mark.parametrize(
    ("endpoint", "complaint"),
    [
        ("nowhere", "is not tcp://HOST:PORT"),
        ("inproc://kv", "is not tcp://HOST:PORT"),
        ("tcp://host:0", "nobody listens on port 0"),
        ("ipc://", "a socket's path has 1 to 107 bytes"),
        ("ipc://" + "x" * 108, "a socket's path has 1 to 107 bytes"),
    ],
)
def test_an_endpoint_that_is_no_place_is_refused(endpoint: str, complaint: str) -> None:
    with pytest.raises(EndpointError, match=complaint):
        require_reachable(endpoint)


async def test_a_unix_socket_is_reached_by_its_path_or_its_abstract_name(tmp_path: Path) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(greeting() + ready("PUB"))
        await reader.read()
        writer.close()

    for path, endpoint in ((f"{tmp_path}/s", f"ipc://{tmp_path}/s"), (f"\0{tmp_path}", f"ipc://@{tmp_path}")):
        async with await asyncio.start_unix_server(serve, path):
            link = await reached(endpoint)
            link.close()
            await in_time(link.closed)
