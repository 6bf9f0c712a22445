"""``python -m bench e2e``: what is played on which fleet, and what came of it; real engines, a real router."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import aiohttp
import msgspec
import pytest
import zmq
import zmq.asyncio

from bench.__main__ import main
from bench.children import ChildGroup
from bench.client import COMPLETIONS_PATH, BenchClient
from bench.e2e.engines import Books, Engines
from bench.e2e.outcome import Outcome, figures
from bench.e2e.scene import MODEL, Scene, SceneError
from bench.workloads.request import Ask, Workload
from contract.framing import parse_replay_reply, replay_request

ROOT = Path(__file__).parent.parent.parent


def scene(*asks: Ask, **more: float) -> Scene:
    return Scene(workload=Workload("three", 100, asks), requests=3, seconds=10, seed=1, replicas=2, **more)  # type: ignore[arg-type]


ASKS = (
    Ask(5.0, (1, 2), tokens=250, output_tokens=3),
    Ask(6.0, (1, 3), tokens=200, output_tokens=0),
    Ask(9.0, (1, 2), tokens=250, output_tokens=99),
    Ask(9.5, (4,), tokens=100, output_tokens=1),
)


def test_equal_blocks_are_equal_letters_and_what_is_no_block_is_nobody_else_s() -> None:
    bodies = [json.loads(body) for _, body in scene(*ASKS).bodies()]
    prompts = [body["prompt"] for body in bodies]
    assert [len(prompt) for prompt in prompts] == [250, 200, 250]
    assert prompts[0][:200] == prompts[2][:200]
    assert prompts[0][200:] != prompts[2][200:]
    assert prompts[0][:100] == prompts[1][:100]
    assert prompts[0][100:200] != prompts[1][100:200]
    assert [body["max_tokens"] for body in bodies] == [3, 1, 8]


def test_the_first_requests_take_the_seconds_they_are_told_to() -> None:
    assert [due for due, _ in scene(*ASKS).bodies()] == [0.0, 2.5, 10.0]


def test_a_fleet_without_hits_is_busy_for_the_share_it_is_told() -> None:
    played = scene(*ASKS, load=0.5)
    assert played.prompt_tokens * played.prefill_us_per_token / 1e6 == pytest.approx(0.5 * 10 * 2)


def test_a_cache_holds_its_share_of_distinct_tokens_and_two_requests_at_least() -> None:
    assert scene(*ASKS).distinct_tokens == 300
    assert scene(*ASKS).cache_tokens == 2 * 320  # 259 tokens in whole blocks of 64
    assert scene(*ASKS, cache_share=10).cache_tokens == 3000


def test_a_workload_of_requests_that_are_too_long_is_refused() -> None:
    with pytest.raises(SceneError, match="three: no request of the first 3 has 1 to 50 tokens"):
        list(scene(*ASKS, max_input=50).bodies())


def books(prompt: int, cached: int) -> Books:
    return Books(prompt_tokens=prompt, cached_tokens=cached, prefilled_tokens=prompt - cached)


def test_hits_and_balance_are_what_the_engines_say() -> None:
    run = Outcome(
        ttfts=[0.1 * tenth for tenth in range(1, 11)],
        failed=2,
        books=[books(100, 50).since(books(20, 10)), books(40, 20)],
        late_seconds=0.001,
    )
    found = {one.metric: one.value for one in figures("c", "r", [run])}
    assert found["hit tokens"] == 60
    assert found["hit rate"] == 0.5
    assert found["busiest / mean"] == 40 / 30
    assert found["TTFT p50"] == pytest.approx(550)
    assert found["TTFT p90"] == pytest.approx(910)
    assert (found["failed"], found["latest start"]) == (2, 1)


async def test_engines_count_publish_in_vllm_s_words_and_forget(tmp_path: Path) -> None:
    played = scene(*ASKS, load=0.001)
    async with ChildGroup(tmp_path) as children, aiohttp.ClientSession() as session:
        started = await children.start("engines", played.engines(), ready_mark="kvsteer-engine ready ", ready_count=2)
        engines = Engines(session, started.urls)
        fleet = await engines.fleet(model=MODEL)
        assert (fleet.block_width, len({replica.events for replica in fleet.replicas})) == (played.width, 2)
        client = BenchClient(session, started.urls[0])
        _, body = next(iter(played.bodies()))
        cold, warm = [await client.ask(COMPLETIONS_PATH, body) for _ in range(2)]
        counted, idle = await engines.books()
        assert idle == books(0, 0)
        assert (counted.prompt_tokens, counted.cached_tokens) == (2 * cold.prompt_tokens, warm.cached_tokens)
        assert warm.cached_tokens == 192  # of 251 tokens, in blocks of 64
        assert {event["type"] for event in await second_events(fleet.replicas[0].replay)} == {"BlockStored"}
        await engines.empty()
        assert (await client.ask(COMPLETIONS_PATH, body)).cached_tokens == 0


async def second_events(replay: str | None) -> list[dict[str, object]]:
    """The events of the batch behind the first, which says that the engine is empty; as they are on the wire."""
    with zmq.asyncio.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.linger = 0
        dealer.connect(replay or "")
        await dealer.send_multipart(replay_request(1))
        frame = parse_replay_reply(await dealer.recv_multipart())
    assert frame is not None
    events: list[dict[str, object]] = msgspec.msgpack.decode(frame.payload)[1]
    return events


def test_ours_is_played_without_peers() -> None:
    flags = ("--requests", "40", "--seconds", "2", "--replicas", "2", "--only", "kvsteer", "--json")
    command = [sys.executable, "-m", "bench", "e2e", *flags]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith("bench e2e: 40 requests of generated, ")
    found = {one["metric"]: one["value"] for one in map(json.loads, done.stdout.splitlines())}
    assert found["hit tokens"] > 0
    assert found["TTFT p90"] >= found["TTFT p50"] > 0
    assert found["failed"] == 0


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (("--only", "nobody"), "no router is called nobody; there are kvsteer, "),
        (("--trace", "no-such-file"), "no-such-file: No such file or directory"),
    ],
)
def test_what_cannot_be_played_is_one_line(
    flags: tuple[str, ...], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["e2e", *flags]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(f"bench e2e: {complaint}")
    assert said.err.count("\n") == 1
