"""``kvsteer-router check``: a verdict on each running replica, and an exit status that a script can use."""

from __future__ import annotations

import asyncio
import io
import json
from contextlib import redirect_stdout
from random import Random
from typing import Any

import pytest
from aiohttp import web
from command import kvsteer_router
from fake_engine import FakeEngine, FakeVllm, answer_at_once, free_port, stored
from router_stage import Stage

from router.__main__ import main
from router.console.flags import parse_check

SECONDS = "1"
UNTIL_SEEN = "60"  # listening ends as soon as a fault shows that leaves a replica without hits
PROMPT = Random(3).choices(range(250), k=300)


async def caching(engine: FakeEngine, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    """Announces every prompt it is sent, and finds again what it announced."""
    prompt = body.get("prompt") or body["input_ids"]
    width = engine.width
    known = engine.__dict__.setdefault("known", set())
    full = tuple(prompt[: (len(prompt) - 1) // width * width])
    engine.cached_tokens = len(full) if full in known else 0
    if full not in known:
        known.add(full)
        engine.publish(stored(full, width=width), rank=int(request.headers.get("X-Data-Parallel-Rank", "0")))
    return await answer_at_once(engine, request, body)


async def publishing(stage: Stage, engine: FakeEngine, **more: Any) -> FakeEngine:
    engine.publish_on(**more)
    engine.answer = caching
    return await stage.engine(engine)


async def check(*argv: str, seconds: str = SECONDS) -> tuple[int, Any]:
    """In a thread of its own: a process takes longer to start than most checks take."""
    with redirect_stdout(io.StringIO()) as out:
        status = await asyncio.to_thread(main, ["check", "--json", "--seconds", seconds, *argv])
    return status, json.loads(out.getvalue())


def codes(report: Any) -> list[list[str]]:
    return [[finding["code"] for finding in replica["findings"]] for replica in report["replicas"]]


async def test_an_advertised_physical_page_in_front_of_wide_events_is_named_and_fails(stage: Stage) -> None:
    engine = await publishing(stage, FakeEngine(width=64), advertised_width=16)
    engine.publish(stored(PROMPT, width=64))
    status, report = await check(engine.url, seconds=UNTIL_SEEN)
    assert status == 1
    assert codes(report) == [["width-mismatch"]]
    (replica,) = report["replicas"]
    assert replica["verdict"] == "at zero"
    assert "16" in replica["findings"][0]["detail"]
    assert "64" in replica["findings"][0]["detail"]
    (lane,) = replica["lanes"]
    assert (lane["advertised_block_size"], lane["emitted_block_size"], lane["blocks"]) == (16, 64, 4)


@pytest.mark.parametrize("kind", [FakeEngine, FakeVllm])
async def test_a_probe_that_hits_as_promised_passes(stage: Stage, kind: type[FakeEngine]) -> None:
    engines = [await publishing(stage, kind(width=6)), await publishing(stage, kind(width=20, ranks=2))]
    status, report = await check("--probe", *(engine.url for engine in engines))
    assert status == 0, report
    assert report["healthy"]
    assert [replica["verdict"] for replica in report["replicas"]] == ["healthy", "healthy"]
    probed = [lane for replica in report["replicas"] for lane in replica["lanes"]]
    assert len(probed) == 3
    assert all(lane["predicted"] and lane["predicted"] == lane["reported"] for lane in probed)


async def test_a_probe_whose_events_never_come_fails(stage: Stage) -> None:
    engine = await publishing(stage, FakeEngine(width=6))
    engine.answer = answer_at_once
    status, report = await check("--probe", engine.url)
    assert status == 1
    assert codes(report) == [["events-silent"]]


async def test_a_probe_that_the_engine_does_not_find_again_fails(stage: Stage) -> None:
    engine = await publishing(stage, FakeEngine(width=6))

    async def forgetful(engine: FakeEngine, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        engine.publish(stored(body["prompt"], width=engine.width))
        return await answer_at_once(engine, request, body)

    engine.answer = forgetful
    status, report = await check("--probe", engine.url)
    assert (status, codes(report)) == (1, [["hits-not-realised"]])


async def test_a_probe_finds_a_width_that_no_event_had_shown(stage: Stage) -> None:
    engine = await publishing(stage, FakeEngine(width=256), advertised_width=16)
    status, report = await check("--probe", engine.url)
    assert (status, codes(report)) == (1, [["width-mismatch"]])
    (lane,) = report["replicas"][0]["lanes"]
    assert lane["predicted"] == lane["reported"] == 1024


async def test_an_engine_with_a_short_context_is_probed_with_less(stage: Stage) -> None:
    engine = await publishing(stage, FakeEngine(width=6))

    async def short(engine: FakeEngine, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        if len(body["prompt"]) > 100:
            return web.json_response({"error": {"message": "too long"}}, status=400)
        return await caching(engine, request, body)

    engine.answer = short
    status, report = await check("--probe", engine.url)
    assert (status, codes(report)) == (0, [[]])


async def test_an_engine_that_answers_no_probe_is_failing(stage: Stage) -> None:
    engine = await publishing(stage, FakeEngine(width=6))

    async def ill(engine: FakeEngine, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        return web.json_response({"error": {"message": "no"}}, status=500)

    engine.answer = ill
    status, report = await check("--probe", engine.url)
    assert (status, report["replicas"][0]["verdict"]) == (1, "failing")
    assert "500" in report["replicas"][0]["notes"][0]


async def test_a_replica_without_reports_is_a_warning(stage: Stage) -> None:
    engine = await publishing(stage, FakeVllm(width=6))

    async def silent(engine: FakeEngine, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        engine.publish(stored(body["prompt"], width=engine.width))
        engine.cached_tokens = None
        return await answer_at_once(engine, request, body)

    engine.answer = silent
    status, report = await check("--probe", engine.url)
    assert (status, codes(report)) == (0, [["reports-missing"]])
    assert report["replicas"][0]["verdict"] == "warning"


async def test_events_that_are_off_and_ports_where_nobody_listens_fail_without_traffic(stage: Stage) -> None:
    off, deaf = await stage.engine(), FakeEngine()
    deaf.publish_on()
    deaf.server_info["kv_events"]["endpoint_port_base"] = free_port()
    del deaf.server_info["kv_events"]["replay_endpoint_port_base"]
    await stage.engine(deaf)
    status, report = await check(off.url, deaf.url)
    assert (status, codes(report)) == (1, [["events-silent"], ["events-silent"]])


async def test_engines_that_do_not_agree_are_named_with_their_reason(stage: Stage) -> None:
    engine = await stage.engine()
    engine.server_info["kv_events_reason"] = "engines disagree (rank 0: 4224, rank 1: 1056)"
    status, report = await check(engine.url, seconds=UNTIL_SEEN)
    assert (status, codes(report)) == (1, [["agreement-missing"]])
    assert "1056" in report["replicas"][0]["findings"][0]["detail"]


async def test_an_idle_replica_passes_with_a_note_and_one_that_is_away_fails(stage: Stage) -> None:
    engine = await publishing(stage, FakeEngine(width=6))
    status, report = await check(engine.url)
    assert status == 0
    assert "--probe" in report["replicas"][0]["notes"][0]
    status, report = await check(engine.url, f"http://127.0.0.1:{free_port()}")
    assert status == 1
    assert [replica["verdict"] for replica in report["replicas"]] == ["healthy", "away"]


async def test_a_router_is_asked_for_what_it_has_seen(stage: Stage) -> None:
    engine = await publishing(stage, FakeEngine(width=64), advertised_width=16)
    engine.publish(stored(PROMPT, width=64))
    router = await stage.router(engine)
    await router.until_matched(PROMPT, {engine.url: 256})
    status, report = await check(router.url)
    assert (status, codes(report)) == (1, [["width-mismatch"]])


async def test_the_table_says_what_to_do(stage: Stage) -> None:
    engine = await publishing(stage, FakeEngine(width=64), advertised_width=16)
    engine.publish(stored(PROMPT, width=64))
    ended = await kvsteer_router("check", "--seconds", UNTIL_SEEN, engine.url)
    assert ended.status == 1
    assert "at zero: width-mismatch" in ended.out
    assert "To do:" in ended.out
    assert ended.err == ""


@pytest.mark.parametrize(
    "argv", [[], ["ftp://x"], ["http://a:1", "--seconds", "0"], ["http://a:1", "http://a:1"], ["http://a:1", "--wat"]]
)
def test_a_command_line_that_makes_no_sense_is_one_line_and_status_2(
    argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse_check(argv)
    assert ended.value.code == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
