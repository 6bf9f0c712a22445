"""Two equal prompts to one lane through a router: does the second one hit as its events promise?"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from random import Random
from typing import Any

import msgspec

from router.console.reader import ReadError, RouterReader
from router.front.views import Explanation, LaneView, ReplicaView
from router.proof.report import Report, read_report

__all__ = ["Probed", "probe_lane", "probe_prompt"]

LONG_TOKENS = 1024
"""Enough for two blocks of nearly every engine, whatever it advertises."""

MARGIN_TOKENS = 8
TOO_LONG_STATUS = (400, 413, 422)
_TOKEN_IDS = range(3, 200)
_LOOK_EVERY = 0.05
_RANK_HEADER = "X-Data-Parallel-Rank"


class Probed(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it, in tokens. ``predicted`` is what the index held before the second prompt was sent.

    ``events``: whether a batch came meanwhile. ``trouble`` says why there is no result.
    """

    dp_rank: int
    prompt_tokens: int
    predicted: int | None = None
    reported: int | None = None
    events: bool = False
    trouble: str | None = None


def probe_prompt(lane: LaneView, *, chance: Random, least: int = LONG_TOKENS) -> list[int]:
    """Ids that every vocabulary has, two blocks and a bit long, that nobody else has sent."""
    width = lane.emitted_block_size or lane.advertised_block_size or 0
    return chance.choices(_TOKEN_IDS, k=max(2 * width, least) + MARGIN_TOKENS)


async def probe_lane(
    router: RouterReader, replica: ReplicaView, lane: LaneView, *, chance: Random, seconds: float
) -> Probed:
    """Send a prompt, wait up to ``seconds`` for its blocks to be announced, and send it again.

    Where the engine takes no prompt that long, two blocks as advertised must do.
    """
    try:
        return await _probe(router, replica, lane, prompt=probe_prompt(lane, chance=chance), seconds=seconds)
    except _TooLongError:
        shorter = probe_prompt(lane, chance=chance, least=0)
        return await _probe(router, replica, lane, prompt=shorter, seconds=seconds)


class _TooLongError(Exception):
    """The engine refused a prompt that a shorter one may stand in for."""


async def _probe(
    router: RouterReader, replica: ReplicaView, lane: LaneView, *, prompt: Sequence[int], seconds: float
) -> Probed:
    attempt = _Attempt(router, replica, lane, prompt)
    try:
        await attempt.send()
        predicted = await attempt.wait_announced(seconds)
        report = await attempt.send_for_report()
        events = await attempt.heard()
    except ReadError as error:
        if error.status in TOO_LONG_STATUS and len(prompt) == LONG_TOKENS + MARGIN_TOKENS:
            raise _TooLongError from None
        return Probed(dp_rank=lane.dp_rank, prompt_tokens=len(prompt), trouble=str(error))
    return Probed(
        dp_rank=lane.dp_rank,
        prompt_tokens=len(prompt),
        predicted=predicted,
        reported=None if report is None else report.cached_tokens,
        events=events,
    )


class _Attempt:
    """One lane's probe."""

    def __init__(self, router: RouterReader, replica: ReplicaView, lane: LaneView, prompt: Sequence[int]) -> None:
        self._router = router
        self._replica = replica
        self._lane = lane
        self._prompt = list(prompt)
        self._headers = {_RANK_HEADER: str(lane.dp_rank)} if len(replica.lanes) > 1 else {}

    async def send(self) -> Report | None:
        """By the OpenAI route, which every engine has."""
        body: dict[str, Any] = {"prompt": self._prompt, "max_tokens": 1, "temperature": 0.0}
        if self._replica.model is not None:
            body["model"] = self._replica.model
        return read_report(await self._router.ask("/v1/completions", body, headers=self._headers))

    async def send_for_report(self) -> Report | None:
        """Once more; SGLang reports on ``/generate`` what it keeps back on OpenAI's routes unless told to."""
        report = await self.send()
        if (report is None or report.cached_tokens is None) and self._replica.engine == "sglang":
            body = {"input_ids": self._prompt, "sampling_params": {"max_new_tokens": 1, "temperature": 0.0}}
            report = read_report(await self._router.ask("/generate", body, headers=self._headers)) or report
        return report

    async def wait_announced(self, seconds: float) -> int:
        """Tokens that the index holds of the prompt, once it holds any."""
        deadline = time.monotonic() + seconds
        matched = await self._matched()
        while not matched and time.monotonic() < deadline:
            await asyncio.sleep(_LOOK_EVERY)
            matched = await self._matched()
        return matched

    async def heard(self) -> bool:
        """Whether the lane has had a batch since the probe began."""
        (replica,) = (await self._router.fleet()).replicas
        now = next((lane for lane in replica.lanes if lane.dp_rank == self._lane.dp_rank), self._lane)
        return now.last_seq != self._lane.last_seq

    async def _matched(self) -> int:
        raw = await self._router.ask("/explain", {"prompt": self._prompt}, headers={})
        lanes = msgspec.json.decode(raw, type=Explanation).lanes
        return next((lane.matched_tokens for lane in lanes if lane.dp_rank == self._lane.dp_rank), 0)
