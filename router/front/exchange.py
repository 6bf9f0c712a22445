"""One request's books, from the moment a lane is chosen until the answer has been compared with the prediction.

Booked on its lane from the moment it exists; a context, so that leaving takes it off, whatever happened. Knows no HTTP.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

from router.choice.chooser import Decision
from router.choice.dispatch import Dispatch
from router.fleet.lane import Lane
from router.front.headers import Headers
from router.front.metrics import RequestMetrics
from router.front.plan import Plan
from router.front.receipts import Receipt
from router.proof.report import Report
from router.proof.tally import Outcome
from router.proof.witness import Witness, witness

__all__ = ["Exchange"]


class Exchange:
    """``now`` is when the lane was chosen, by the clock that all other times here come from."""

    def __init__(
        self, plan: Plan, decision: Decision[Lane], *, now: float, metrics: RequestMetrics, receipt: Receipt
    ) -> None:
        self.lane = decision.chosen.lane
        self._receipt = receipt
        self._plan = plan
        self._chosen = decision.chosen
        self._metrics = metrics
        self._dispatch = Dispatch(
            self.lane,
            plan.prompt,
            width=decision.chosen.width,
            uncached_tokens=decision.chosen.uncached_tokens * plan.request.prompts,
            now=now,
        )
        self._timer = None if plan.request.stream else self._expect_prefilled(now)
        self.lane.tally.routed += 1
        self._report: Report | None = None
        self._recorded = None if receipt.tape is None else receipt.tape.routed(plan, decision)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._dispatch.end()
        tape = self._receipt.tape
        if tape is not None and self._recorded is not None:
            tape.served(self._recorded, first_after=self._dispatch.first_after, report=self._report)

    def _expect_prefilled(self, now: float) -> asyncio.TimerHandle:
        """An answer that comes at once shows no first token: take the time it should need, by the learnt speed."""
        dispatch, after = self._dispatch, self._dispatch.expected()
        return asyncio.get_running_loop().call_later(after, lambda: dispatch.prefilled(now=now + after))

    @property
    def counts_were_added(self) -> bool:
        """Whether the stream carries token counts that only the router asked for."""
        return self._plan.request.wants_counts_added

    def answered(self, headers: Headers) -> Headers:
        """The client's answer begins with these headers; those that it gets."""
        return self._receipt.answered(headers)

    def first_token(self, *, now: float) -> None:
        """The answer has begun, or is there at once: the engine has computed the prompt."""
        self._dispatch.first_token(now=now)
        tape = self._receipt.tape
        if tape is not None and self._recorded is not None:
            tape.first_token(self._recorded)

    def finished(self, report: Report | None, *, now: float) -> None:
        """The answer is complete; compare what the engine says it had cached with what was predicted.

        A batch is left out: its report is a sum over prompts of which only the first was looked up.
        """
        if report is None:
            return
        self._report, self._receipt.reported = report, report.cached_tokens
        if self._plan.request.prompts > 1:
            return
        outcome = Outcome(
            prompt_tokens=report.prompt_tokens,
            counted_tokens=self._plan.prompt_tokens if self._plan.prompt is not None else None,
            predicted=self._chosen.matched_tokens,
            reported=report.cached_tokens,
            width=self._chosen.width,
            witness=self._witness(),
            at=now,
        )
        self.lane.tally.record(outcome, batches=self.lane.batches)
        self._learn(outcome, report.completion_tokens, now=now)

    def _witness(self) -> Witness | None:
        prompt, lane = self._plan.prompt, self.lane
        if prompt is None:
            return None
        return witness(prompt, width=self._chosen.width, pairs=lane.pairs, engines=lane.engines, holds=lane.holds)

    def _learn(self, outcome: Outcome, answer_tokens: int | None, *, now: float) -> None:
        self._dispatch.learn(
            prompt_tokens=outcome.prompt_tokens,
            cached_tokens=outcome.reported or 0,
            answer_tokens=answer_tokens,
            streamed=self._plan.request.stream,
            now=now,
        )
        if self._plan.request.stream and self._dispatch.first_after is not None:
            self._metrics.first_token(self.lane.url, seconds=self._dispatch.first_after)
