"""Diagnoses of the closed loop: what was predicted against what the engine reports, and why they part. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from router.proof.facts import LaneFacts
from router.proof.fault import Code, Fault
from router.proof.first_difference import Difference, first_difference
from router.proof.tally import Outcome

__all__ = [
    "hits_not_predicted",
    "hits_not_realised",
    "prompts_shorter_than_block",
    "reports_missing",
    "salt_or_adapter_mismatch",
    "tokenization_mismatch",
]

ENOUGH = 5
MANY = 16
REALISED_SHARE = 0.5
COMPARED_BLOCKS = 64

_HOW_TO_REPORT = {
    "sglang": "start SGLang with --enable-cache-report",
    "vllm": "start vLLM with --enable-prompt-tokens-details",
}


def reports_missing(facts: LaneFacts) -> Iterator[Fault]:
    """Hits were predicted, and the engine never says what it found."""
    promised = [outcome for outcome in facts.tally.window if outcome.predicted and outcome.reported is None]
    if facts.tally.ever_reported or len(promised) < ENOUGH:
        return
    how = _HOW_TO_REPORT.get(facts.engine, "make the engine report cached_tokens in its usage")
    yield Fault(
        code=Code.REPORTS_MISSING,
        dp_rank=facts.dp_rank,
        detail=f"rank {facts.dp_rank}: {len(promised)} answers with predicted hits carried no cached_tokens, so hits "
        f"cannot be checked: {how}",
        advice=how,
        evidence={"requests": len(promised), "predicted": sum(outcome.predicted for outcome in promised)},
    )


def tokenization_mismatch(facts: LaneFacts) -> Iterator[Fault]:
    """Prompts have other token ids here than on the engine: their lengths differ, or their blocks never appear."""
    counted = [outcome for outcome in facts.tally.window if outcome.counted_tokens is not None]
    longer = [outcome for outcome in counted if outcome.counted_tokens != outcome.prompt_tokens]
    if not _most(longer, counted):
        longer = []
    announced = _must_be_announced(facts)
    unseen = [outcome for outcome in announced if outcome.first_key not in facts.first_blocks]
    if not _most(unseen, announced):
        unseen = []
    if longer or unseen:
        yield _tokenization_fault(facts, counted=counted, longer=longer, unseen=unseen)


def _most(some: Sequence[Outcome], of: Sequence[Outcome]) -> bool:
    return len(some) >= ENOUGH and 2 * len(some) > len(of)


def _must_be_announced(facts: LaneFacts) -> list[Outcome]:
    """Requests whose first block the engine must have told of, if it had the ids that the router had.

    The router held nothing of them, so the block was new (the engine found less than a block), or it was told of
    earlier (all that was told is known). Nothing follows from them while events do not flow.
    """
    if not facts.batches or facts.lost or facts.tally.silent_stores(facts.batches) >= ENOUGH:
        return []
    return [
        outcome
        for outcome in facts.settled
        if not outcome.predicted
        and outcome.witness is not None
        and outcome.first_key is not None
        and outcome.witness.engines == facts.first_blocks.engines
        and not outcome.namespaced
        and outcome.width == facts.width
        and (facts.complete or (outcome.reported is not None and outcome.reported < (outcome.width or 0)))
    ]


def _tokenization_fault(
    facts: LaneFacts, *, counted: Sequence[Outcome], longer: Sequence[Outcome], unseen: Sequence[Outcome]
) -> Fault:
    last = (unseen or longer)[-1]
    difference = _difference(facts, last)
    if longer:
        seen = (
            f"{len(longer)} of {len(counted)} prompts have another length here than on the engine "
            f"(last: {longer[-1].counted_tokens} here, {longer[-1].prompt_tokens} there)"
        )
    else:
        seen = f"the first blocks of {len(unseen)} prompts are not among those the engine announced"
    return Fault(
        code=Code.TOKENIZATION_MISMATCH,
        dp_rank=facts.dp_rank,
        detail=f"rank {facts.dp_rank}: {seen}; tokenizer or chat template differ{_told(difference)}",
        advice="give the router the engine's own tokenizer and chat template (--tokenizer), or let it ask the "
        "engine's /tokenize (--tokenizer auto)",
        evidence={
            "prompts": len(longer or unseen),
            "tokens_here": last.counted_tokens,
            "tokens_there": last.prompt_tokens,
            "first_difference": None if difference is None else difference.at,
            "token_here": None if difference is None else difference.here,
            "token_there": None if difference is None else difference.there,
        },
    )


def _difference(facts: LaneFacts, outcome: Outcome) -> Difference | None:
    if outcome.witness is None:
        return None
    return first_difference(outcome.witness.head, facts.first_blocks.latest(COMPARED_BLOCKS))


def _told(difference: Difference | None) -> str:
    if difference is None:
        return ""
    said = f"; first difference at token {difference.at}: {difference.here} here, {difference.there} on the engine"
    if difference.shift > 0:
        said += f" (which has {difference.shift} more in front: BOS or template)"
    elif difference.shift < 0:
        said += f" (which has {-difference.shift} fewer in front: BOS or template)"
    return said


def salt_or_adapter_mismatch(facts: LaneFacts) -> Iterator[Fault]:
    """Prompts with a salt or an adapter fare otherwise than predicted, and plain ones as predicted."""
    salted, plain = _split(facts)
    missed = [outcome for outcome in salted if outcome.missed]
    empty = [outcome for outcome in salted if _unrealised(outcome)]
    wrong = missed if len(missed) >= len(empty) else empty
    if not facts.batches or not _most(wrong, salted) or _most([o for o in plain if o.missed or _unrealised(o)], plain):
        return
    predicted, reported = sum(o.predicted for o in wrong), sum(o.reported or 0 for o in wrong)
    bare = sum(o.witness is not None and o.witness.plain_tokens > 0 for o in wrong)
    lies = f"; {bare} of them lie in the index without salt or adapter" if bare else ""
    yield Fault(
        code=Code.SALT_OR_ADAPTER_MISMATCH,
        dp_rank=facts.dp_rank,
        detail=f"rank {facts.dp_rank}: of {len(salted)} requests with a salt or an adapter {len(wrong)} were predicted "
        f"{predicted} cached tokens and found {reported}, while plain ones fare as predicted{lies}",
        advice="the engine's events must name salts and adapters: SGLang 0.5.18 or later, vLLM 0.17 or later, adapters "
        'by name; SGLang\'s extra_key only with "format":"dynamo" in its kv-events-config',
        evidence={
            "requests": len(wrong),
            "predicted": predicted,
            "reported": reported,
            "indexed_without_namespace": bare,
        },
    )


def _split(facts: LaneFacts) -> tuple[list[Outcome], list[Outcome]]:
    """Checked requests with a namespace of their own, and plain ones."""
    checked = facts.checked
    return [one for one in checked if one.namespaced], [one for one in checked if not one.namespaced]


def _unrealised(outcome: Outcome) -> bool:
    return (outcome.reported or 0) < REALISED_SHARE * outcome.predicted


def hits_not_realised(facts: LaneFacts) -> Iterator[Fault]:
    """The engine finds much less than was predicted."""
    promised = [outcome for outcome in facts.checked if outcome.predicted]
    predicted = sum(outcome.predicted for outcome in promised)
    reported = sum(outcome.reported or 0 for outcome in promised)
    if len(promised) < ENOUGH or reported >= REALISED_SHARE * predicted:
        return
    yield Fault(
        code=Code.HITS_NOT_REALISED,
        dp_rank=facts.dp_rank,
        detail=f"rank {facts.dp_rank}: of {predicted} tokens predicted as cached over the last {len(promised)} such "
        f"requests the engine found {reported}; {_likely_cause(facts)}",
        advice="look at the other faults of this lane first; then compare GET /index with what the engine holds, "
        "and see whether its cache is too small to keep a prompt, or a hybrid's states, until it comes again",
        evidence={"requests": len(promised), "predicted": predicted, "reported": reported},
    )


def hits_not_predicted(facts: LaneFacts) -> Iterator[Fault]:
    """The engine finds what nobody here knew of, and no prediction ever holds; judged by plain prompts."""
    _, plain = _split(facts)
    found = [outcome for outcome in plain if outcome.reported]
    if len(found) < MANY or any(outcome.predicted for outcome in plain):
        return
    reported = sum(outcome.reported or 0 for outcome in found)
    yield Fault(
        code=Code.HITS_NOT_PREDICTED,
        dp_rank=facts.dp_rank,
        detail=f"rank {facts.dp_rank}: the engine found {reported} cached tokens in {len(found)} of the last "
        f"{len(plain)} requests and the router predicted none; {_likely_cause(facts)}",
        advice="look at the other faults of this lane first: events that do not come, or prompts tokenized differently",
        evidence={"requests": len(found), "predicted": 0, "reported": reported},
    )


def _likely_cause(facts: LaneFacts) -> str:
    """The nearest explanation that the facts allow."""
    if facts.no_events or not facts.batches:
        return "no events come from this lane"
    if facts.lost or facts.stream_state == "untrusted":
        return "events of this lane were lost"
    if any(tokenization_mismatch(facts)):
        return "its prompts are tokenized differently here"
    if any(salt_or_adapter_mismatch(facts)):
        return "salts or adapters are not in its events"
    return (
        "token ids, salt or adapter differ between router and engine, or its cache drops blocks before they are used, "
        "or the states of a hybrid model, of which events say nothing"
    )


def prompts_shorter_than_block(facts: LaneFacts) -> Iterator[Fault]:
    """Nothing of such prompts can ever be found again."""
    window = facts.tally.window
    if len(window) < MANY or not all(outcome.width and outcome.prompt_tokens <= outcome.width for outcome in window):
        return
    longest, width = max(outcome.prompt_tokens for outcome in window), window[-1].width
    yield Fault(
        code=Code.PROMPTS_SHORTER_THAN_BLOCK,
        dp_rank=facts.dp_rank,
        detail=f"rank {facts.dp_rank}: the last {len(window)} prompts had at most {longest} tokens and a block has "
        f"{width}: nothing of them can be found again",
        advice="smaller pages or fewer DCP ranks make shorter blocks; for such prompts balance by load alone",
        evidence={"requests": len(window), "longest": longest, "block_width": width},
    )
