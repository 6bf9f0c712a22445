"""Prompts repeated on an idle fleet: one that keeps the contract passes, and a silent zero is seen without any sums."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from typing import Any

import msgspec
import pytest
from aiohttp import web
from fake_engine import FakeEngine, stored
from router_stage import Stage

from bench.client import COMPLETIONS_PATH
from bench.demo.probing import Prober
from bench.router_view import RouterView
from bench.tally import Asked, Tally
from bench.verdict import judge

WIDTH = 6
PROMPT = list(range(40))


async def finds_36(engine: FakeEngine, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    usage = {"prompt_tokens": len(body["prompt"]), "prompt_tokens_details": {"cached_tokens": 36}}
    return web.json_response({"choices": [{"text": "x", "finish_reason": "length"}], "usage": usage})


class ListingEngine(FakeEngine):
    """Says how far its events go, tells of ``holds``, and finds 36 tokens of every prompt."""

    def __init__(self, *, holds: Sequence[int]) -> None:
        super().__init__(width=WIDTH)
        self.answer = finds_36
        self.publish_on()
        self._told = stored(holds, width=WIDTH)
        self.publish(self._told)

    def add_routes(self, app: web.Application) -> None:
        super().add_routes(app)
        app.router.add_get("/kv_blocks", self._kv_blocks)

    async def _kv_blocks(self, request: web.Request) -> web.Response:
        held = [{"hash": str(name), "tier": "GPU", "copies": 1} for name in self._told.block_hashes]
        return web.json_response({"last_seq": self.publishers[0].last_seq, "blocks": held})


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    async with AsyncExitStack() as stack:
        yield Stage(stack)


async def broken(stage: Stage, engine: ListingEngine) -> list[str]:
    """What is found broken after one request, other than that no client has counted it."""
    await stage.engine(engine)
    router = await stage.router(engine)
    view = RouterView(router.session, router.url)
    tally = Tally(width=WIDTH)
    tally.last_asked[engine.url] = Asked(COMPLETIONS_PATH, msgspec.json.encode({"prompt": PROMPT}))
    prober = Prober(router.session, view, settle_seconds=60.0)
    fleet = await prober.level()
    holdings, probes = await prober.holdings(fleet), await prober.probe(tally)
    return [breach.detail for breach in judge(fleet, tally, holdings, probes, width=WIDTH, expected=0)]


async def test_a_fleet_that_finds_what_was_predicted_passes(stage: Stage) -> None:
    engine = ListingEngine(holds=PROMPT)
    assert await broken(stage, engine) == []
    assert len(engine.asked) == 2


async def test_a_router_that_predicts_nothing_of_what_is_found_is_seen_when_a_prompt_is_repeated(stage: Stage) -> None:
    assert await broken(stage, ListingEngine(holds=[7, *PROMPT])) == [
        "0 cached tokens predicted for a repeated prompt, 36 reported",
        "0 hit tokens were predicted of a prompt that was repeated on an idle fleet, 36 reported",
    ]
