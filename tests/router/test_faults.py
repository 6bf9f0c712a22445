"""Diagnoses: each from the smallest evidence that proves it, and none without."""

from __future__ import annotations

from typing import Any

import pytest

from router.intake.first_blocks import KEPT_BLOCKS, FirstBlocks
from router.proof.facts import LaneFacts
from router.proof.fault import Fault
from router.proof.fault_book import FaultBook
from router.proof.faults import lane_faults
from router.proof.first_difference import Difference, first_difference
from router.proof.tally import LaneTally, Outcome
from router.proof.witness import Witness


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
        assert codes(facts(tally(*outcomes, batches=False), batches=0)) == []


def test_one_batch_ends_the_silence_also_one_that_comes_after_the_last_request() -> None:
    books = tally(*[outcome() for _ in range(20)], batches=False)
    assert codes(facts(books, batches=0)) == ["events-silent"]
    assert codes(facts(books, batches=1)) == []
    books.record(outcome(), batches=1)
    assert codes(facts(books, batches=1)) == []


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


def seen(*, first_key: int | None, head: tuple[int, ...] = (), namespaced: bool = False, plain: int = 0) -> Witness:
    return Witness(namespaced=namespaced, plain_tokens=plain, first_key=first_key, head=head)


def announced(*blocks: tuple[int, ...], key: int = 1000) -> FirstBlocks:
    found = FirstBlocks()
    for number, ids in enumerate(blocks):
        found.note(key + number, ids, pairs=False)
    return found


OURS, THEIRS = (5, 6, 7, 8, 9, 10), (99, 5, 6, 7, 8, 9)


def unseen(count: int, **given: Any) -> LaneTally:
    return tally(*[outcome(witness=seen(first_key=number, head=OURS), **given) for number in range(count)])


def test_prompts_whose_first_blocks_are_never_announced_are_tokenized_otherwise() -> None:
    """C6, where the lengths agree: the fault names the first token that differs, and the shift."""
    fault = only(facts(unseen(5), first_blocks=announced(THEIRS)))
    assert fault.code == "tokenization-mismatch"
    assert dict(fault.evidence) == {
        "prompts": 5,
        "tokens_here": 100,
        "tokens_there": 100,
        "first_difference": 0,
        "token_here": 5,
        "token_there": 99,
    }
    assert "1 more in front" in fault.detail


@pytest.mark.parametrize(
    "given",
    [
        {"first_blocks": announced(OURS, OURS, OURS, OURS, OURS, key=0)},  # they were announced
        {"now": 0.5},  # their events may still come
        {"batches": 0},  # nothing comes: another fault
        {"lost": 2},  # they may have been lost
        {"emitted_widths": (12,), "advertised_width": 12},  # hashed at a width that is no more
    ],
)
def test_first_blocks_that_prove_nothing_are_no_fault(given: dict[str, Any]) -> None:
    assert "tokenization-mismatch" not in codes(facts(unseen(5), **{"first_blocks": announced(THEIRS), **given}))


def test_what_another_engine_announced_proves_nothing() -> None:
    blocks = announced(THEIRS)
    blocks.clear()
    blocks.note(1000, THEIRS, pairs=False)
    assert codes(facts(unseen(5), first_blocks=blocks)) == []


def test_a_block_that_was_cached_before_the_router_came_need_not_be_announced() -> None:
    found = unseen(5, reported=96)
    assert codes(facts(found, complete=False, first_blocks=announced(THEIRS))) == []
    assert codes(facts(unseen(5, reported=0), complete=False, first_blocks=announced(THEIRS))) == [
        "tokenization-mismatch"
    ]


def salted(count: int, **given: Any) -> list[Outcome]:
    return [outcome(witness=seen(first_key=None, namespaced=True, plain=48), **given) for _ in range(count)]


def test_salted_prompts_that_fare_otherwise_than_plain_ones_are_named() -> None:
    """C11: the engine finds them, its events do not name the salt; and the reverse."""
    plain = [outcome(predicted=48, reported=48) for _ in range(5)]
    fault = only(facts(tally(*plain, *salted(5, reported=48))))
    assert fault.code == "salt-or-adapter-mismatch"
    assert fault.evidence["indexed_without_namespace"] == 5
    found = codes(facts(tally(*plain, *salted(6, predicted=96, reported=0))))
    assert found == ["salt-or-adapter-mismatch", "hits-not-realised"]
    assert codes(facts(tally(*plain, *salted(6, predicted=48, reported=48)))) == []


def test_salts_are_not_blamed_where_plain_prompts_fare_no_better() -> None:
    plain = [outcome(reported=48) for _ in range(9)]
    assert codes(facts(tally(*plain, *salted(5, reported=48)))) == []


def test_the_first_difference_is_that_to_the_most_alike() -> None:
    assert first_difference(OURS, []) is None
    assert first_difference(OURS, [OURS]) is None
    assert first_difference(OURS, [(50, 51, 52, 53, 54, 55)]) is None
    assert first_difference(OURS, [(1, 2, 3), (5, 6, 7, 1, 9, 10)]) == Difference(at=3, here=8, there=1, shift=0)
    assert first_difference(THEIRS, [OURS]) == Difference(at=0, here=99, there=5, shift=-1)


def test_first_blocks_are_bounded_and_pairs_are_read_as_tokens() -> None:
    found = FirstBlocks()
    for key in range(3 * KEPT_BLOCKS):
        found.note(key, [1, 2, 2, 3, 3, 4], pairs=True)
    assert len(found) == KEPT_BLOCKS
    assert 0 not in found
    assert [list(ids) for ids in found.latest(1)] == [[1, 2, 3]]


def test_a_fault_keeps_its_first_time_until_it_is_gone() -> None:
    book = FaultBook()
    fault = only(facts(lost=3))
    assert [sighting.code for sighting in book.enter("a", [fault], now=1.0)] == ["stream-lost"]
    assert book.enter("a", [fault], now=2.0) == []
    (held,) = book.faults("a")
    assert (held.first_seen, held.last_seen) == (1.0, 2.0)
    assert book.enter("a", [], now=3.0) == []
    assert book.faults("a") == []
    (again,) = book.enter("a", [fault], now=4.0)
    assert again.first_seen == 4.0
    book.forget("a")
    assert book.faults("a") == []


def test_every_fault_says_what_to_do_and_proves_itself() -> None:
    found = lane_faults(
        facts(
            tally(*[outcome(counted_tokens=99, predicted=48, reported=0) for _ in range(20)], batches=False),
            advertised_width=3,
            batches=0,
            lost=1,
            stream_state="untrusted",
            stream_reason="why",
        )
    )
    assert len(found) >= 6
    assert all(fault.advice and fault.evidence for fault in found)


def test_the_window_shows_promise_report_and_difference() -> None:
    books = tally(*[outcome(predicted=48, reported=36) for _ in range(100)], outcome(counted_tokens=None, reported=9))
    sums = books.window_sums
    assert (sums.requests, sums.prompt) == (63, 6300)
    assert (sums.predicted_hit, sums.reported_hit, sums.difference) == (63 * 48, 63 * 36, 63 * 12)
