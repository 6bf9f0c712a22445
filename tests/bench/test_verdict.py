"""Every way in which the contract can break is seen, and a sound fleet raises nothing."""

import msgspec
import pytest

from bench.client import Reply
from bench.router_view import ExplainedLane, Fault, FleetView, LaneView, ReplicaView, RequestCounts, TokenCounts
from bench.tally import Asked, Tally
from bench.verdict import Holding, Probe, judge

WIDTH = 6
LANE = LaneView(dp_rank=0, stream="live", last_seq=9, lost=0, advertised_block_size=WIDTH, emitted_block_size=WIDTH)
REPLICA = ReplicaView(
    url="http://a",
    state="ready",
    tokens=TokenCounts(prompt=100, predicted_hit=60, reported_hit=54),
    requests=RequestCounts(routed=2, in_flight=0),
    lanes=[LANE],
    faults=[],
)
PROBE = Probe(
    lane=ExplainedLane(url="http://a", dp_rank=0, block_size=WIDTH, prompt_tokens=50, matched_tokens=48),
    prompt_tokens=50,
    cached_tokens=48,
    booked=TokenCounts(prompt=50, predicted_hit=48, reported_hit=48),
)
BLOCKS = {("1", "GPU"): 1, ("2", "GPU"): 2}
HOLDING = Holding(where="http://a lane 0", engine=BLOCKS, index=BLOCKS)
replace = msgspec.structs.replace


def tally(*, failures: int = 0) -> Tally:
    result = Tally()
    for cached in (24, 30):
        result.add(
            Asked("/v1/completions", b""),
            Reply(
                replica="http://a",
                text="",
                prompt_tokens=50,
                cached_tokens=cached,
                completion_tokens=1,
                ttft=0.1,
                elapsed=0.2,
            ),
        )
    result.failures += ["status 500: boom"] * failures
    return result


def found(
    *,
    replica: ReplicaView = REPLICA,
    seen: Tally | None = None,
    holding: Holding = HOLDING,
    probe: Probe = PROBE,
    expected: int = 2,
) -> list[str]:
    breaches = judge(FleetView([replica]), seen or tally(), [holding], [probe], width=WIDTH, expected=expected)
    return [str(breach) for breach in breaches]


def with_lane(**changes: object) -> ReplicaView:
    return replace(REPLICA, lanes=[replace(LANE, **changes)])


def with_tokens(*, predicted: int, reported: int) -> ReplicaView:
    return replace(REPLICA, tokens=TokenCounts(prompt=100, predicted_hit=predicted, reported_hit=reported))


def with_probe(**changes: object) -> Probe:
    return replace(PROBE, lane=replace(PROBE.lane, **changes))


def test_a_sound_run_raises_nothing() -> None:
    assert found() == []


@pytest.mark.parametrize("value", [3, 12, None])
def test_an_advertised_width_that_is_not_the_fleets_is_a_breach(value: int | None) -> None:
    assert found(replica=with_lane(advertised_block_size=value)) == [
        f"http://a lane 0: advertised block width is {value}, not 6"
    ]


@pytest.mark.parametrize("value", [3, None])
def test_an_emitted_width_that_is_not_the_fleets_is_a_breach(value: int | None) -> None:
    assert found(replica=with_lane(emitted_block_size=value)) == [
        f"http://a lane 0: emitted block width is {value}, not 6"
    ]


def test_a_replica_that_was_asked_nothing_need_not_have_emitted() -> None:
    idle = replace(
        with_lane(emitted_block_size=None, last_seq=-1),
        url="http://idle",
        requests=RequestCounts(routed=0, in_flight=0),
        tokens=TokenCounts(prompt=0, predicted_hit=0, reported_hit=0),
    )
    assert judge(FleetView([REPLICA, idle]), tally(), [HOLDING], [PROBE], width=WIDTH, expected=2) == []


@pytest.mark.parametrize(("predicted", "reported"), [(0, 48), (48, 0)])
def test_hits_of_a_repeated_prompt_that_are_not_booked_as_predicted_are_a_breach(predicted: int, reported: int) -> None:
    booked = TokenCounts(prompt=50, predicted_hit=predicted, reported_hit=reported)
    line = f"http://a: {predicted} hit tokens were predicted of a prompt that was repeated on an idle fleet, {reported}"
    assert found(probe=replace(PROBE, booked=booked)) == [f"{line} reported"]


def test_hits_that_no_repeated_prompt_has_checked_are_a_breach() -> None:
    line = "http://a: 60 hit tokens were predicted or reported, and no prompt was repeated to check them"
    breaches = judge(FleetView([REPLICA]), tally(), [], [], width=WIDTH, expected=2)
    assert [str(breach) for breach in breaches] == [line]


@pytest.mark.parametrize("predicted", [0, 30, 90])
def test_predictions_of_a_workload_may_be_late_and_are_no_breach(predicted: int) -> None:
    assert found(replica=with_tokens(predicted=predicted, reported=54)) == []


@pytest.mark.parametrize(
    ("index", "lacks", "others"),
    [({("1", "GPU"): 1}, 1, 0), (BLOCKS | {("3", "GPU"): 1}, 0, 1), (BLOCKS | {("2", "GPU"): 1}, 1, 1), ({}, 2, 0)],
)
def test_an_index_that_is_not_what_the_engine_holds_is_a_breach(
    index: dict[tuple[str, str], int], lacks: int, others: int
) -> None:
    line = f"http://a lane 0: of the engine's 2 blocks the index lacks {lacks}; it has {others} others"
    assert found(holding=replace(HOLDING, index=index)) == [line]


@pytest.mark.parametrize("changes", [{"stream": "untrusted"}, {"lost": 2}, {"last_seq": -1}])
def test_a_lost_or_silent_stream_is_a_breach(changes: dict[str, object]) -> None:
    (line,) = found(replica=with_lane(**changes))
    assert line.startswith("http://a lane 0: event stream is ")


def test_a_failed_request_is_a_breach_that_quotes_it() -> None:
    assert found(seen=tally(failures=3), expected=5) == ["client: 3 requests failed, the first: status 500: boom"]


def test_a_request_that_never_ended_is_a_breach() -> None:
    assert found(expected=3) == ["client: 2 of 3 requests ended"]


def test_books_that_differ_from_what_clients_saw_are_a_breach() -> None:
    (line,) = found(replica=with_tokens(predicted=60, reported=53))
    assert "router counts 2 requests, 100 prompt tokens, 53 cached, clients saw 2 requests" in line


def test_a_fault_the_router_found_is_a_breach() -> None:
    faulty = replace(REPLICA, faults=[Fault("width_mismatch", "advertised 6, emitted 3")])
    assert found(replica=faulty) == ["http://a: width_mismatch: advertised 6, emitted 3"]


@pytest.mark.parametrize("value", [3, None])
def test_a_router_that_hashes_at_another_width_is_a_breach(value: int | None) -> None:
    assert found(probe=with_probe(block_size=value)) == [f"http://a: router hashes at {value} tokens a block, not 6"]


def test_a_repeated_prompt_must_be_cached_for_exactly_the_tokens_predicted() -> None:
    assert found(probe=with_probe(matched_tokens=42)) == [
        "http://a: 42 cached tokens predicted for a repeated prompt, 48 reported"
    ]


def test_a_prompt_must_have_one_length_on_both_sides() -> None:
    assert found(probe=with_probe(prompt_tokens=51)) == ["http://a: router counts 51 tokens in a prompt, the engine 50"]


def test_agreeing_on_nothing_cached_is_a_breach_too() -> None:
    nothing = TokenCounts(prompt=50, predicted_hit=0, reported_hit=0)
    dead = replace(with_probe(matched_tokens=0), cached_tokens=0, booked=nothing)
    assert found(probe=dead) == ["http://a: nothing of a prompt of 50 tokens is cached just after it was answered"]
