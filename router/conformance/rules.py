"""What a KV-event publisher is held to, rule by rule, and what was found. Values only.

The rules are what SGLang 0.5.9 to 0.5.23 and vLLM 0.9.0 to 0.33.0 keep, as far as a consumer has to rely on it.
"""

from __future__ import annotations

import enum
from collections.abc import Callable

import msgspec

__all__ = ["RULES", "Finding", "Ledger", "Rule", "Verdict"]


class Rule(enum.StrEnum):
    """Names of the rules, as printed."""

    REACHABLE = "reachable"
    FRAMES = "frames"
    NUMBERING = "numbering"
    RESTART = "restart"
    BATCH = "batch"
    EVENTS = "events"
    RANK = "rank"
    WIDTH = "width"
    ADVERTISED_WIDTH = "advertised-width"
    TOKENS = "tokens"
    PARENTS = "parents"
    ORDER = "order"
    IDENTITY = "identity"
    REMOVALS = "removals"
    REPLAY_ANSWER = "replay-answer"
    REPLAY_ORDER = "replay-order"
    REPLAY_COMPLETE = "replay-complete"
    REPLAY_OVERLAP = "replay-overlap"
    REPLAY_BEYOND_END = "replay-beyond-end"
    REPLAY_MALFORMED = "replay-malformed"


RULES: dict[Rule, str] = {
    Rule.REACHABLE: "the endpoint accepts a subscription",
    Rule.FRAMES: "a live message is topic, 8 bytes of sequence number, payload",
    Rule.NUMBERING: "batches are numbered one by one; what was not sent live is replayed",
    Rule.RESTART: "a publisher that starts anew numbers from 0",
    Rule.BATCH: "a payload is msgpack of [time, events, rank]",
    Rule.EVENTS: "each event is a BlockStored, BlockRemoved or AllBlocksCleared with its fields",
    Rule.RANK: "one stream speaks for one data-parallel rank",
    Rule.WIDTH: "full-attention blocks have one width",
    Rule.ADVERTISED_WIDTH: "blocks have the width that the server advertises",
    Rule.TOKENS: "a store holds block_size tokens for each hash",
    Rule.PARENTS: "a store's parent is null or was announced",
    Rule.ORDER: "a parent is announced before its children",
    Rule.IDENTITY: "one hash stands for one content",
    Rule.REMOVALS: "what is removed was stored before, as often as it is removed",
    Rule.REPLAY_ANSWER: "a replay is answered by 3 or 4 frames a batch and then the end marker",
    Rule.REPLAY_ORDER: "a replay begins at or after what was asked for and its numbers rise",
    Rule.REPLAY_COMPLETE: "a replay leaves out nothing behind its first batch",
    Rule.REPLAY_OVERLAP: "a replayed batch is the live one, byte for byte",
    Rule.REPLAY_BEYOND_END: "a replay from beyond the end is the end marker alone",
    Rule.REPLAY_MALFORMED: "a malformed replay request is not answered, and the next good one is",
}


class Verdict(enum.StrEnum):
    """What became of a rule; a rule that nothing put to the test is not seen."""

    PASS = "pass"
    FAIL = "fail"
    NOT_SEEN = "not seen"


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One rule's outcome: how often it was put to the test, how often it failed, and the first failure."""

    rule: Rule
    demand: str
    verdict: Verdict
    seen: int
    failures: int
    evidence: str | None


class Ledger:
    """Counts for each rule how often it was put to the test, and keeps the first failure."""

    def __init__(self) -> None:
        self._seen = dict.fromkeys(RULES, 0)
        self._failures = dict.fromkeys(RULES, 0)
        self._evidence: dict[Rule, str] = {}

    def held(self, rule: Rule) -> None:
        """The rule was put to the test and held."""
        self._seen[rule] += 1

    def broken(self, rule: Rule, evidence: str) -> None:
        """The rule was put to the test and failed."""
        self._seen[rule] += 1
        self._failures[rule] += 1
        self._evidence.setdefault(rule, evidence)

    def check(self, rule: Rule, kept: bool, evidence: Callable[[], str]) -> None:
        """Note one test of a rule; the evidence is asked for only if it failed."""
        if kept:
            self.held(rule)
        else:
            self.broken(rule, evidence())

    def findings(self) -> list[Finding]:
        """The outcome, in the order of the rules."""
        return [self._finding(rule, demand) for rule, demand in RULES.items()]

    def _finding(self, rule: Rule, demand: str) -> Finding:
        seen, failures = self._seen[rule], self._failures[rule]
        verdict = Verdict.FAIL if failures else Verdict.PASS if seen else Verdict.NOT_SEEN
        return Finding(
            rule=rule,
            demand=demand,
            verdict=verdict,
            seen=seen,
            failures=failures,
            evidence=self._evidence.get(rule),
        )
