"""Every recording of a real engine leaves the index equal to what that engine held, after every checkpoint.

Where the recorded truth is ambiguous:

* SGLang's recordings list hashes, not copies. A tree holds a hash once per tenant, so copies are checked where the
  recording tells tenants apart (``page4-namespaces``), and are 1 elsewhere.
* ``page4-namespaces`` also records what a consumer without copies would hold; the tree is the truth, not that.
* ``vllm-extra`` seq 6 is a full report, of which its README says that a counting consumer must over-count. It carries a
  session, and with that evidence the engine's own count is met (see ``router.intake.lane``), so no exception is needed.
* ``vllm-wire-*`` are encodings, not a history: what is checked is that nothing in them is refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from contract.events import normalize_hash, tier_of
from router.prompt import Prompt
from router.replay import Recording, read_recording

GOLDEN = Path(__file__).parent.parent / "golden"
Index = dict[tuple[str, str, int | None], int]


def recordings(kind: str) -> list[str]:
    return sorted(path.name.removesuffix(".meta.json") for path in GOLDEN.glob(f"{kind}*.meta.json"))


def meta(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((GOLDEN / f"{name}.meta.json").read_text())
    return content


def replay(name: str) -> Iterator[tuple[int, Recording]]:
    """The recording after each of its frames, by line."""
    recording = Recording()
    for line, frame in enumerate(read_recording(GOLDEN / f"{name}.jsonl")):
        recording.feed(frame)
        yield line, recording


def final(name: str) -> Recording:
    return list(replay(name))[-1][1]


def index_of(recording: Recording, rank: str = "0") -> Index:
    return {
        (str(block["hash"]), str(block["tier"]), block["group"]): block["copies"]  # type: ignore[misc]
        for block in recording.record().lanes[rank].blocks
    }


def sglang_truth(by_medium: dict[str, list[int]]) -> Index:
    return {
        (str(normalize_hash(name)), tier_of(medium), None): 1  # type: ignore[misc]
        for medium, names in by_medium.items()
        for name in names
    }


def vllm_truth(rows: list[dict[str, Any]]) -> Index:
    return {(str(row["block_hash"]), "GPU", row["group_idx"]): row["copies"] for row in rows}


@pytest.mark.parametrize("name", recordings("vllm"))
def test_vllm_recordings_match_the_engine_after_every_batch(name: str) -> None:
    truth = meta(name)
    checkpoints = {point["after_seq"]: vllm_truth(point["index"]) for point in truth["checkpoints"]}
    for seq, recording in replay(name):
        assert index_of(recording) == checkpoints[seq], f"after seq {seq}"
    assert index_of(recording) == vllm_truth(truth["final_engine_index"])


WITH_FINAL_INDEX = [name for name in recordings("sglang") if "expected_index" in meta(name)]
WITH_FINAL_INDEX.remove("sglang-page4-namespaces")  # there it is a consumer's without copies; the tree's own is below


@pytest.mark.parametrize("name", WITH_FINAL_INDEX)
def test_sglang_recordings_end_with_what_the_tree_holds(name: str) -> None:
    assert index_of(final(name)) == sglang_truth(meta(name)["expected_index"])


@pytest.mark.parametrize("name", [name for name in recordings("sglang") if "index_after_seq" in meta(name)])
def test_sglang_recordings_match_the_tree_after_every_batch(name: str) -> None:
    after = meta(name)["index_after_seq"]
    for seq, recording in replay(name):
        assert index_of(recording) == sglang_truth(after[seq]), f"after seq {seq}"


def test_tenants_that_share_hashes_are_counted_as_the_tree_holds_them() -> None:
    tenants = meta("sglang-page4-namespaces")["tree_truth_by_namespace[extra_key,cache_salt]"]
    expected: Index = {}
    for names in tenants.values():
        for key in sglang_truth({"GPU": names}):
            expected[key] = expected.get(key, 0) + 1
    assert index_of(final("sglang-page4-namespaces")) == expected


def test_several_operations_in_one_batch_keep_their_order() -> None:
    truth = meta("sglang-page16-batched")
    assert index_of(final("sglang-page16-batched")) == sglang_truth({"GPU": truth["tree_truth"]["[null, null]"]})


def test_each_rank_is_a_lane_of_its_own() -> None:
    recording = final("sglang-page16-dp3")
    expected = meta("sglang-page16-dp3")["expected_by_rank"]
    assert recording.record().lanes.keys() == expected.keys()
    for rank, names in expected.items():
        assert index_of(recording, rank) == sglang_truth({"GPU": names})


PROBES = [(name, probe) for name in recordings("sglang") for probe in meta(name).get("probes", {})]


@pytest.mark.parametrize(("name", "probe"), PROBES)
def test_prompts_match_as_far_as_the_tree_matches_them(name: str, probe: str) -> None:
    asked = meta(name)["probes"][probe]
    record = final(name).record(Prompt(asked["tokens"]))
    assert record.matched_tokens == asked["expected_matched_tokens"]


@pytest.mark.parametrize("name", ["vllm-dcp1", "vllm-dcp1-bytes", "vllm-dcp1-xxhash_cbor-seed0", "vllm-dcp4"])
def test_a_prompt_matches_what_the_engine_then_took_from_its_cache(name: str) -> None:
    """vLLM recomputes at least the last token, so of a prompt that is all cached it takes one block less."""
    truth = meta(name)
    checked = 0
    for operation, recording in scheduled_on_a_known_state(name, truth["operations"]):
        tokens = truth["prompts"][operation["request"]]
        width = truth["block_size"] * truth["decode_context_parallel_size"]
        matched = recording.record(Prompt(tokens)).matched_tokens
        assert min(matched, (len(tokens) - 1) // width * width) == operation["cached_tokens"], operation["op"]
        checked += 1
    assert checked > 5


def scheduled_on_a_known_state(
    name: str, operations: list[dict[str, Any]]
) -> Iterator[tuple[dict[str, Any], Recording]]:
    """Prompts scheduled while all events before them had been published, with the index at that moment."""
    history = replay(name)
    recording, pending = Recording(), False
    for operation in operations:
        if operation["op"].startswith("drain"):
            recording = next(history)[1] if operation.get("events") else recording
            pending = False
        elif "cached_tokens" in operation:
            if not pending and operation["request"] in meta(name)["prompts"]:
                yield operation, recording
            pending = True


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("vllm-wire-*.jsonl")), ids=lambda path: path.stem)
def test_every_vllm_wire_is_understood(path: Path) -> None:
    lane = final(path.stem).record().lanes["0"]
    assert (lane.rejected_events, lane.gaps, lane.lost) == (0, 0, 0)
    bytes_hashes = [block["hash"] for block in lane.blocks]
    assert all(re.fullmatch("[0-9a-f]{64}", str(name)) for name in bytes_hashes)


def test_load_statistics_are_no_kv_events_but_cost_nothing() -> None:
    lane = final("sglang-loadstat").record().lanes["0"]
    assert (lane.last_seq, lane.rejected_events, lane.blocks) == (1, 2, [])
