"""What is wrong with a lane, from what was seen: stable codes, each with a sentence that names the numbers. Pure.

Judged afresh each time somebody looks; a fault that no longer holds is no longer there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from router.proof.tally import LaneTally, Outcome

__all__ = ["Fault", "LaneFacts", "lane_faults"]

SILENT_STORES = 16
ENOUGH = 5
MANY = 16
REALISED_SHARE = 0.5


class Fault(msgspec.Struct, frozen=True):
    """``code`` never changes its meaning; ``detail`` is for people."""

    code: str
    detail: str


class LaneFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A lane as it stands. Widths are block widths in tokens.

    ``no_events`` says why there is nothing to subscribe to (None: there is). ``emitted_widths`` are all widths that the
    events had, the latest last. ``batches`` and ``lost`` count event batches.
    """

    dp_rank: int
    engine: str
    endpoint: str | None
    no_events: str | None
    stream_state: str
    stream_reason: str | None
    batches: int
    lost: int
    advertised_width: int | None
    emitted_widths: Sequence[int]
    tally: LaneTally


def lane_faults(facts: LaneFacts) -> list[Fault]:
    """Everything that is wrong with a lane now."""
    checks = (
        _width_mismatch,
        _events_silent,
        _stream_lost,
        _stream_untrusted,
        _reports_missing,
        _tokenization_mismatch,
        _hits_not_realised,
        _hits_not_predicted,
        _prompts_shorter_than_block,
    )
    return [fault for check in checks for fault in check(facts)]


def _width_mismatch(facts: LaneFacts) -> Iterator[Fault]:
    advertised = facts.advertised_width
    others = [width for width in facts.emitted_widths if width != advertised]
    if advertised is not None and others:
        emitted = ", ".join(map(str, others))
        yield Fault(
            "width-mismatch",
            f"rank {facts.dp_rank} advertises block_size {advertised} and its events carry {emitted}; "
            f"prompts are hashed at {facts.emitted_widths[-1]}",
        )


def _events_silent(facts: LaneFacts) -> Iterator[Fault]:
    stores = facts.tally.silent_stores
    if stores < SILENT_STORES:
        return
    why = facts.no_events or f"nothing came from {facts.endpoint}: wrong port, or events are off on the engine"
    since = "no event" if not facts.batches else f"no event since batch {facts.batches}"
    yield Fault(
        "events-silent",
        f"rank {facts.dp_rank}: {since} although {stores} requests since must have stored blocks; {why}",
    )


def _stream_lost(facts: LaneFacts) -> Iterator[Fault]:
    if facts.lost:
        yield Fault(
            "stream-lost",
            f"rank {facts.dp_rank}: {facts.lost} event batches never came and could not be replayed; "
            "its index may be incomplete",
        )


def _stream_untrusted(facts: LaneFacts) -> Iterator[Fault]:
    if facts.stream_state == "untrusted":
        yield Fault(
            "stream-untrusted",
            f"rank {facts.dp_rank}: its index may be incomplete: {facts.stream_reason}",
        )


_HOW_TO_REPORT = {
    "sglang": "start SGLang with --enable-cache-report",
    "vllm": "start vLLM with --enable-prompt-tokens-details",
}


def _reports_missing(facts: LaneFacts) -> Iterator[Fault]:
    if facts.tally.ever_reported:
        return
    promised = [outcome for outcome in facts.tally.window if outcome.predicted and outcome.reported is None]
    if len(promised) >= ENOUGH:
        how = _HOW_TO_REPORT.get(facts.engine, "the engine says nothing of cached tokens in its usage")
        yield Fault(
            "reports-missing",
            f"rank {facts.dp_rank}: {len(promised)} answers with predicted hits carried no cached_tokens, so hits "
            f"cannot be checked: {how}",
        )


def _counted(facts: LaneFacts) -> list[Outcome]:
    """Requests of which both sides' counts are known."""
    tally = facts.tally
    return [outcome for outcome in tally.window if outcome.counted_tokens is not None and tally.ever_reported]


def _tokenization_mismatch(facts: LaneFacts) -> Iterator[Fault]:
    counted = [outcome for outcome in facts.tally.window if outcome.counted_tokens is not None]
    differ = [outcome for outcome in counted if outcome.counted_tokens != outcome.prompt_tokens]
    if len(differ) >= ENOUGH and 2 * len(differ) > len(counted):
        last = differ[-1]
        yield Fault(
            "tokenization-mismatch",
            f"rank {facts.dp_rank}: {len(differ)} of {len(counted)} prompts have another length here than on the "
            f"engine (last: {last.counted_tokens} here, {last.prompt_tokens} there); tokenizer or chat template differ",
        )


def _hits_not_realised(facts: LaneFacts) -> Iterator[Fault]:
    promised = [outcome for outcome in _counted(facts) if outcome.predicted]
    predicted = sum(outcome.predicted for outcome in promised)
    reported = sum(outcome.reported or 0 for outcome in promised)
    if len(promised) >= ENOUGH and reported < REALISED_SHARE * predicted:
        yield Fault(
            "hits-not-realised",
            f"rank {facts.dp_rank}: of {predicted} tokens predicted as cached over the last {len(promised)} such "
            f"requests the engine found {reported}; {_likely_cause(facts)}",
        )


def _hits_not_predicted(facts: LaneFacts) -> Iterator[Fault]:
    counted = _counted(facts)
    found = [outcome for outcome in counted if outcome.reported]
    if len(found) >= MANY and not any(outcome.predicted for outcome in counted):
        reported = sum(outcome.reported or 0 for outcome in found)
        yield Fault(
            "hits-not-predicted",
            f"rank {facts.dp_rank}: the engine found {reported} cached tokens in {len(found)} of the last "
            f"{len(counted)} requests and the router predicted none; {_likely_cause(facts)}",
        )


def _likely_cause(facts: LaneFacts) -> str:
    """The nearest explanation that the facts allow."""
    if facts.no_events or not facts.batches:
        return "no events come from this lane"
    if facts.lost or facts.stream_state == "untrusted":
        return "events of this lane were lost"
    if any(_tokenization_mismatch(facts)):
        return "its prompts are tokenized differently here"
    return "token ids, salt or adapter differ between router and engine, or its cache drops blocks before they are used"


def _prompts_shorter_than_block(facts: LaneFacts) -> Iterator[Fault]:
    window = facts.tally.window
    if len(window) >= MANY and all(outcome.width and outcome.prompt_tokens <= outcome.width for outcome in window):
        longest = max(outcome.prompt_tokens for outcome in window)
        yield Fault(
            "prompts-shorter-than-block",
            f"rank {facts.dp_rank}: the last {len(window)} prompts had at most {longest} tokens and a block has "
            f"{window[-1].width}: nothing of them can be found again",
        )
