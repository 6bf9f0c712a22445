"""The conformance judge asks replay endpoints: each way to answer wrongly fails the rule that it breaks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from event_source import EventSource
from watched_publisher import GOOD, batch, by_rule, failed, playing, watched

from contract.framing import END_SEQ, replay_end, replay_reply
from router.conformance.rules import Rule, Verdict


class Replies(EventSource):
    """A source whose answers to replay requests are changed on the way."""

    def __init__(self, change: Callable[[list[list[bytes]], list[bytes]], list[list[bytes]]]) -> None:
        super().__init__()
        self._change = change

    def answers(self, request: list[bytes]) -> list[list[bytes]]:
        return self._change(super().answers(request), request)


def _asked_from(request: list[bytes]) -> int:
    return int.from_bytes(request[-1], "big")


def no_end(answer: list[list[bytes]], request: list[bytes]) -> list[list[bytes]]:
    return answer[:-1]


def five_frames(answer: list[list[bytes]], request: list[bytes]) -> list[list[bytes]]:
    return [[b"", *reply] for reply in answer]


def two_shapes(answer: list[list[bytes]], request: list[bytes]) -> list[list[bytes]]:
    return [[reply[0], *reply[2:]] for reply in answer[:1]] + answer[1:]


def end_with_a_payload(answer: list[list[bytes]], request: list[bytes]) -> list[list[bytes]]:
    return [*answer[:-1], [b"", b"", END_SEQ, b"bye"]] if answer else []


def backwards(answer: list[list[bytes]], request: list[bytes]) -> list[list[bytes]]:
    return answer[:-1][::-1] + answer[-1:]


def one_left_out(answer: list[list[bytes]], request: list[bytes]) -> list[list[bytes]]:
    return answer[:1] + answer[2:] if len(answer) > 2 else answer


def other_payloads(answer: list[list[bytes]], request: list[bytes]) -> list[list[bytes]]:
    return [[*reply[:-1], batch(0, ts=9.0).payload] for reply in answer[:-1]] + answer[-1:]


def nothing(answer: list[list[bytes]], request: list[bytes]) -> list[list[bytes]]:
    return answer[-1:]


def everything_beyond_the_end(answer: list[list[bytes]], request: list[bytes]) -> list[list[bytes]]:
    beyond = len(request) == 3 and not request[1] and _asked_from(request) > 1000
    return [*map(replay_reply, GOOD), replay_end()] if beyond else answer


def silent_beyond_the_end(answer: list[list[bytes]], request: list[bytes]) -> list[list[bytes]]:
    return [] if answer == [replay_end()] and _asked_from(request) > 1000 else answer


def answers_anything(answer: list[list[bytes]], request: list[bytes]) -> list[list[bytes]]:
    return answer or [replay_end()]


BEYOND_THE_END = {Rule.REPLAY_BEYOND_END, Rule.REPLAY_MALFORMED}
BROKEN_REPLAYS = [
    (no_end, Rule.REPLAY_ANSWER, "no end marker in time", set()),
    (five_frames, Rule.REPLAY_ANSWER, "5 frames", {Rule.REPLAY_COMPLETE}),
    (two_shapes, Rule.REPLAY_ANSWER, "messages of [3, 4] frames", set()),
    (end_with_a_payload, Rule.REPLAY_ANSWER, "carries a payload", set()),
    (backwards, Rule.REPLAY_ORDER, "batch 1 came after batch 2", set()),
    (one_left_out, Rule.REPLAY_COMPLETE, "1 batches had come live and are left out, batch 1 first", set()),
    (nothing, Rule.REPLAY_COMPLETE, "batch 2 had come live, and the replay is empty", set()),
    (other_payloads, Rule.REPLAY_OVERLAP, "batch 0 is another one than the live batch 0", set()),
    (everything_beyond_the_end, Rule.REPLAY_BEYOND_END, "4 messages where one end marker was due", BEYOND_THE_END),
    (silent_beyond_the_end, Rule.REPLAY_BEYOND_END, "0 messages", {*BEYOND_THE_END, Rule.REPLAY_ANSWER}),
    (answers_anything, Rule.REPLAY_MALFORMED, "3 messages where one end marker was due", set()),
]


@pytest.mark.parametrize(
    ("change", "rule", "evidence", "besides"), BROKEN_REPLAYS, ids=[change.__name__ for change, *_ in BROKEN_REPLAYS]
)
async def test_a_broken_replay_fails_the_rule_that_it_breaks(
    change: Any, rule: Rule, evidence: str, besides: set[Rule]
) -> None:
    async with Replies(change) as source:
        findings = await watched(source, playing(*GOOD))
    finding = by_rule(findings)[rule]
    assert finding.verdict is Verdict.FAIL, findings
    assert evidence in str(finding.evidence)
    assert failed(findings) == {rule, *besides}, findings


async def test_a_replay_endpoint_that_never_answers_costs_one_deadline_and_fails() -> None:
    async with EventSource(replies="never") as source:
        findings = await watched(source, playing(*GOOD))
    assert failed(findings) == {Rule.REPLAY_ANSWER}
    assert (
        by_rule(findings)[Rule.REPLAY_ANSWER].evidence
        == "from 0, when joining: nothing, and then no end marker in time"
    )
    assert by_rule(findings)[Rule.REPLAY_MALFORMED].verdict is Verdict.NOT_SEEN
