"""Diagnoses: each from the smallest evidence that proves it, and none without."""

from __future__ import annotations

from typing import Any

from router.intake.first_blocks import FirstBlocks
from router.proof.facts import LaneFacts
from router.proof.fault import Fault
from router.proof.faults import lane_faults
from router.proof.tally import LaneTally, Outcome


def outcome(**given: Any) -> Outcome:
    fields: dict[str, Any] = {
        "prompt_tokens": 100,
        "counted_tokens": 100,
        "predicted": 0,
        "reported": 0,
        "width": 6,
    }
    return Outcome(**fields | given)


def tally(*outcomes: Outcome, batches: bool = True) -> LaneTally:
    books = LaneTally()
    for number, one in enumerate(outcomes, start=1):
        books.record(one, batches=number if batches else 0)
    return books


def facts(books: LaneTally | None = None, **given: Any) -> LaneFacts:
    fields: dict[str, Any] = {
        "dp_rank": 0,
        "engine": "sglang",
        "endpoint": "tcp://10.0.0.1:5557",
        "no_events": None,
        "stream_state": "live",
        "stream_reason": None,
        "batches": 9,
        "lost": 0,
        "complete": True,
        "first_blocks": FirstBlocks(),
        "now": 100.0,
        "advertised_width": 6,
        "emitted_widths": (6,),
    }
    return LaneFacts(tally=books or LaneTally(), **fields | given)


def codes(found: LaneFacts) -> list[str]:
    return [fault.code for fault in lane_faults(found)]


def only(found: LaneFacts) -> Fault:
    (fault,) = lane_faults(found)
    return fault


def test_a_lane_that_does_as_it_says_has_no_faults() -> None:
    good = [outcome(predicted=48, reported=48) for _ in range(40)]
    assert codes(facts(tally(*good))) == []
    assert codes(facts()) == []


def test_another_width_than_advertised_names_both_numbers() -> None:
    """C1."""
    fault = only(facts(advertised_width=16, emitted_widths=(64,)))
    assert fault.code == "width-mismatch"
    assert "16" in fault.detail
    assert "64" in fault.detail


def test_a_width_nobody_advertised_is_no_mismatch() -> None:
    """vLLM says no width; its events do."""
    assert codes(facts(advertised_width=None, emitted_widths=(64,))) == []


def test_requests_that_store_blocks_without_a_word_of_it_are_noticed() -> None:
    """C5."""
    silent = tally(*[outcome() for _ in range(16)], batches=False)
    fault = only(facts(silent, batches=0, emitted_widths=()))
    assert fault.code == "events-silent"
    assert "tcp://10.0.0.1:5557" in fault.detail
    fewer = tally(*[outcome() for _ in range(15)], batches=False)
    assert codes(facts(fewer, batches=0, emitted_widths=())) == []


def test_the_reason_an_engine_gives_for_its_silence_is_passed_on() -> None:
    silent = tally(*[outcome(width=None) for _ in range(16)], batches=False)
    fault = only(facts(silent, no_events="kv_events is null", endpoint=None, stream_state="off", batches=0))
    assert "kv_events is null" in fault.detail


def test_requests_that_store_nothing_new_prove_no_silence() -> None:
    cached = [outcome(predicted=96, reported=96) for _ in range(40)]
    short = [outcome(prompt_tokens=5, counted_tokens=5) for _ in range(40)]
    for outcomes in (cached, short[:15]):
        assert codes(facts(tally(*outcomes, batches=False), batches=3)) == []


def test_one_batch_ends_the_silence() -> None:
    books = tally(*[outcome() for _ in range(20)], batches=False)
    books.record(outcome(), batches=1)
    assert codes(facts(books)) == []


def test_a_stream_with_holes_says_so() -> None:
    assert only(facts(lost=3)).code == "stream-lost"
    fault = only(facts(stream_state="untrusted", stream_reason="no answer within 3 s"))
    assert fault.code == "stream-untrusted"
    assert "no answer within 3 s" in fault.detail


def test_promised_hits_without_a_report_name_the_flag_to_set() -> None:
    missing = tally(*[outcome(predicted=48, reported=None) for _ in range(5)])
    assert "--enable-cache-report" in only(facts(missing)).detail
    assert "--enable-prompt-tokens-details" in only(facts(missing, engine="vllm")).detail
    assert codes(facts(tally(*[outcome(reported=None) for _ in range(40)]))) == []


def test_an_engine_that_reported_once_means_zero_when_it_says_nothing() -> None:
    """vLLM leaves its details out where nothing was cached."""
    outcomes = [outcome(predicted=48, reported=48), *[outcome(predicted=48, reported=None) for _ in range(9)]]
    assert codes(facts(tally(*outcomes), engine="vllm")) == ["hits-not-realised"]


def test_predictions_that_do_not_come_true_are_named_with_both_sums() -> None:
    """Design decision 4."""
    fault = only(facts(tally(*[outcome(predicted=48, reported=0) for _ in range(5)])))
    assert fault.code == "hits-not-realised"
    assert "240" in fault.detail
    assert codes(facts(tally(*[outcome(predicted=48, reported=30) for _ in range(30)]))) == []


def test_hits_that_nobody_predicted_are_named_when_no_prediction_ever_holds() -> None:
    blind = [outcome(reported=48) for _ in range(16)]
    assert codes(facts(tally(*blind))) == ["hits-not-predicted"]
    assert codes(facts(tally(*blind[:15]))) == []
    assert codes(facts(tally(*blind, outcome(predicted=48, reported=48)))) == []


def test_prompts_that_are_not_tokenized_here_are_no_wrong_prediction() -> None:
    assert codes(facts(tally(*[outcome(counted_tokens=None, reported=48) for _ in range(40)]))) == []


def test_another_prompt_length_than_the_engines_is_a_tokenization_mismatch() -> None:
    """C6, as far as lengths show it."""
    found = lane_faults(facts(tally(*[outcome(counted_tokens=99, predicted=48, reported=0) for _ in range(6)])))
    assert [fault.code for fault in found] == ["tokenization-mismatch", "hits-not-realised"]
    assert "99" in found[0].detail
    assert "tokenized differently" in found[1].detail


def test_prompts_that_fill_no_block_can_never_hit() -> None:
    short = tally(*[outcome(prompt_tokens=50, counted_tokens=50, width=64) for _ in range(16)])
    assert only(facts(short, advertised_width=64, emitted_widths=(64,))).code == "prompts-shorter-than-block"


def test_a_restart_wipes_the_evidence_but_not_the_sums() -> None:
    books = tally(*[outcome(predicted=48, reported=0) for _ in range(9)], batches=False)
    books.restart()
    assert codes(facts(books, batches=0, emitted_widths=())) == []
    assert (books.prompt_tokens, books.predicted) == (900, 432)
