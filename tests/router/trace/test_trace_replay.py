"""``trace replay``: the recorder's own view again, or over sockets to a router that knows nothing of traces."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
import zmq
from made_trace import MadeTrace, store
from patience import in_time, until
from router_stage import Stage

from contract.endpoint import Address
from contract.events import AllBlocksCleared, BlockRemoved
from contract.framing import Frame, parse_live, parse_replay_reply, replay_request
from router.__main__ import main
from router.trace.flags import run_trace
from router.trace.publication import Context, PublishError, publications
from router.trace.reader import TraceReader
from router.trace.recorded_replica import recorded_replicas
from router.trace.records import StreamTurned, Turn
from router.trace.served_replay import ServeOptions, serve_trace

A, B = "http://10.0.0.1:30000", "http://10.0.0.2:30000"
PROMPT = list(range(100, 131))


def test_it_ends_where_the_recorder_was(golden_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    golden, trace = golden_dir / "sglang-page16-dp3.jsonl", tmp_path / "a.kvtrace"
    assert run_trace(["convert", str(golden), str(trace)]) == 0
    assert run_trace(["replay", str(trace), "--json"]) == 0
    replayed = json.loads(capsys.readouterr().out)
    assert main(["replay", str(golden)]) == 0
    lanes = json.loads(capsys.readouterr().out)["lanes"]
    assert replayed["lanes"] == {f"{golden.name}#{rank}": lane for rank, lane in lanes.items()}
    assert run_trace(["replay", str(trace), "--prompt", json.dumps(list(range(40)))]) == 0
    assert f"{golden.name}#2" in capsys.readouterr().out


def test_the_command_for_frames_knows_a_trace_when_it_sees_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = MadeTrace(A).write(tmp_path / "a.kvtrace")
    assert main(["replay", str(file)]) == 1
    assert f"{file} is a .kvtrace, which `kvsteer-router trace replay` reads" in capsys.readouterr().err


def test_a_record_of_a_lane_that_nobody_named_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = MadeTrace(A)
    made.frame(0, store(PROMPT))
    del made.records[2]
    file = made.write(tmp_path / "a.kvtrace")
    assert run_trace(["replay", str(file)]) == 1
    said = capsys.readouterr().err
    assert f"kvsteer-router trace replay: {file}, record 3 at byte " in said
    assert said.endswith(": lane 0 has not been named\n")


@contextlib.asynccontextmanager
async def served(file: Path) -> AsyncIterator[tuple[list[str], list[str]]]:
    """A trace being served: its replicas' URLs, and what is said meanwhile."""
    stop, said = asyncio.Event(), list[str]()
    options = ServeOptions(file=file, address=Address("127.0.0.1", 0), http_port=0, speed=0.0)
    task = asyncio.create_task(serve_trace(options, stop=stop, say=said.append))
    replicas = len(recorded_replicas(TraceReader(file)))
    try:
        await until(lambda: task.done() or len(said) >= replicas, "every replica is ready")
        yield [line.split()[1] for line in said[:replicas]], said
    finally:
        stop.set()
        await in_time(task)


async def test_a_router_is_pointed_at_a_trace_by_url_and_holds_what_the_recorder_held(
    stage: Stage, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """History by replay, a batch that was lost live, an engine that was restarted: all of it comes across."""
    made = MadeTrace(A, B, can_replay=True)
    for lane in (0, 1):
        made.add(StreamTurned(at=made.at, lane=lane, turn=Turn.CONNECTED))
        made.frame(lane, AllBlocksCleared(), seq=0, replayed=True)
        made.frame(lane, store(PROMPT[:13]), seq=1, replayed=True)
        made.add(StreamTurned(at=made.at, lane=lane, turn=Turn.REPLAY_ENDED))
    made.frame(0, store(PROMPT), seq=3)
    made.frame(0, store([7] * 12), seq=2, replayed=True)
    made.frame(0, store(PROMPT), seq=3, replayed=True)
    made.add(StreamTurned(at=made.at, lane=0, turn=Turn.REPLAY_ENDED))
    made.frame(0, BlockRemoved(block_hashes=store([7] * 12).block_hashes[1:]), seq=4)
    made.frame(1, AllBlocksCleared(), seq=0)
    made.frame(1, store([9] * 25), seq=1)
    file = made.write(tmp_path / "a.kvtrace")
    async with served(file) as (urls, said):
        router = await stage.router(replicas=tuple(urls))
        one, two = urls
        wanted = [(PROMPT, {one: 30, two: 0}), ([7] * 12, {one: 6, two: 0}), ([9] * 25, {one: 0, two: 24})]
        for prompt, expected in wanted:
            await router.until_matched([*prompt, 1], expected)
        await until(lambda: sum("replays go on" in line for line in said) == 2, "both have played")
        status, answer = await router.complete(PROMPT)
        assert (status, answer["error"]["code"]) == (503, "recorded_replica")


async def test_the_recorded_descriptor_is_served_right_or_wrong(tmp_path: Path) -> None:
    made = MadeTrace(A, advertised=3)
    made.frame(0, store(PROMPT))
    async with served(made.write(tmp_path / "a.kvtrace")) as ((url,), _), aiohttp.ClientSession() as session:
        async with session.get(f"{url}/server_info") as response:
            info = await response.json()
        assert (info["kv_events"]["block_size"], info["kv_events"]["dp_size"], info["kv_events"]["topic"]) == (
            3,
            1,
            "kv",
        )
        assert (info["served_model_name"], info["engine"], info["recorded_url"]) == ("m", "sglang", A)
        async with session.get(f"{url}/health") as response:
            assert response.status == 200


async def test_replays_are_answered_from_one_engine_s_life_only(tmp_path: Path) -> None:
    def frame(seq: int, text: bytes) -> Frame:
        return Frame(b"kv", seq, text)

    with Context() as context, publications(context, host="127.0.0.1", port=0, replay_port=0, count=1) as (lane,):
        run = asyncio.create_task(lane.run())
        sub, dealer = context.socket(zmq.SUB), context.socket(zmq.DEALER)
        sub.subscribe("kv")
        sub.connect(f"tcp://127.0.0.1:{lane.port}")
        dealer.connect(f"tcp://127.0.0.1:{lane.replay_port}")
        await in_time(lane.subscribed.wait())
        for seq, text, live in [(0, b"old", True), (1, b"old", True), (0, b"new", False), (1, b"new", True)]:
            await lane.send(frame(seq, text), live=live)
        heard = [parse_live(await in_time(sub.recv_multipart())) for _ in range(3)]
        assert heard == [frame(0, b"old"), frame(1, b"old"), frame(1, b"new")]
        await dealer.send_multipart([b"what?"])
        await dealer.send_multipart(replay_request(0))
        replies = [parse_replay_reply(await in_time(dealer.recv_multipart())) for _ in range(3)]
        assert replies == [frame(0, b"new"), frame(1, b"new"), None]
        run.cancel()
        await asyncio.gather(run, return_exceptions=True)
        for socket in (sub, dealer):
            socket.close(linger=0)


def test_addresses_that_cannot_be_bound_are_named(tmp_path: Path) -> None:
    with (
        Context() as context,
        publications(context, host="127.0.0.1", port=0, replay_port=0, count=2) as lanes,
        pytest.raises(PublishError, match=f"tcp://127.0.0.1:{lanes[0].port}: Address already in use"),
        publications(context, host="127.0.0.1", port=lanes[0].port, replay_port=0, count=1),
    ):
        raise AssertionError("a port that is taken was bound")


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--speed", "-1"], "--speed must be in [0, 1e+06], got -1"),
        (["--serve", "ipc://x"], "--serve: 'ipc://x' is not tcp://HOST:PORT"),
        (["--serve", "tcp://127.0.0.1:0", "--http-port", "70000"], "--http-port must be in [0, 65535], got 70000"),
    ],
)
def test_flags_that_make_no_replay_are_named(argv: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        run_trace(["replay", "a.kvtrace", *argv])
    assert capsys.readouterr().err == f"kvsteer-router: error: {said}\n"


def test_a_trace_with_nothing_to_serve_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = MadeTrace().write(tmp_path / "a.kvtrace")
    assert run_trace(["replay", str(file), "--serve", "tcp://127.0.0.1:0"]) == 1
    assert "has no stream of events to serve" in capsys.readouterr().err
