"""Routed requests, written down: where each went and why it seemed right, what became of it, and what it asked for.

A prompt is kept as keys of the index's own chain, at each width that one of its lanes is looked up at, and at a finest
width that divides them all, from which any multiple can be told. No text; token ids only where that was asked for.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator

from router.choice.chooser import Decision
from router.fleet.lane import Lane
from router.front.plan import Plan
from router.prompt import Prompt
from router.proof.report import Report
from router.trace.recorder import Recorder
from router.trace.records import FirstToken, PrefixKeys, Routed, Served, pack_ids, pack_keys

__all__ = ["FINEST_TOKENS", "RequestRecorder"]

FINEST_TOKENS = 16
"""The finest width that keys are kept at, where it divides the fleet's: the physical page of most engines."""


class RequestRecorder:
    """Tells a recorder of requests. ``with_tokens``: their ids too."""

    def __init__(self, recorder: Recorder, *, with_tokens: bool) -> None:
        self._recorder = recorder
        self._with_tokens = with_tokens
        self._numbers = itertools.count()

    def routed(self, plan: Plan, decision: Decision[Lane]) -> int:
        """See `RequestTape`."""
        number, chosen, prompt = next(self._numbers), decision.chosen, plan.prompt
        recorder = self._recorder
        lane = recorder.lane(chosen.lane.url, chosen.lane.dp_rank)
        record = Routed(
            at=recorder.clock(),
            request=number,
            lane=lane,
            lanes=[recorder.lane(lane.url, lane.dp_rank) for lane in plan.lanes],
            model=plan.request.model,
            prompt_tokens=plan.prompt_tokens,
            prompts=plan.request.prompts,
            stream=plan.request.stream,
            predicted=chosen.matched_tokens,
            pending=chosen.pending_tokens,
            namespaced=prompt is not None and prompt.namespaced,
            prefixes=[] if prompt is None else _prefixes(prompt, plan.lanes),
            packed_ids=pack_ids(prompt.head(len(prompt))) if prompt is not None and self._with_tokens else None,
        )
        recorder.note(record)
        return number

    def first_token(self, attempt: int) -> None:
        """See `RequestTape`."""
        self._recorder.note(FirstToken(at=self._recorder.clock(), request=attempt))

    def served(self, attempt: int, *, first_after: float | None, report: Report | None) -> None:
        """See `RequestTape`."""
        self._recorder.note(
            Served(
                at=self._recorder.clock(),
                request=attempt,
                first_after=first_after,
                prompt_tokens=None if report is None else report.prompt_tokens,
                reported=None if report is None else report.cached_tokens,
                output_tokens=None if report is None else report.completion_tokens,
            )
        )


def _prefixes(prompt: Prompt, lanes: Iterable[Lane]) -> list[PrefixKeys]:
    shapes = {(lane.width, lane.pairs) for lane in lanes}
    known = {(width, pairs) for width, pairs in shapes if width}
    return [
        PrefixKeys(width, pairs, pack_keys(prompt.keys(width=width, pairs=pairs)))
        for width, pairs in sorted(known | set(_finest(known)))
    ]


def _finest(shapes: Iterable[tuple[int, bool]]) -> Iterator[tuple[int, bool]]:
    """The finest width of each kind of block; of plain ones in any case."""
    shapes = list(shapes)
    for kind in {False, *(pairs for _, pairs in shapes)}:
        yield math.gcd(FINEST_TOKENS, *(width for width, pairs in shapes if pairs is kind)), kind
