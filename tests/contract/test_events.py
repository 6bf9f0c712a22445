from __future__ import annotations

import base64
import json
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from contract.events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    Dialect,
    EventDecodeError,
    EventEncodeError,
    Rejected,
    decode_batch,
    encode_batch,
    normalize_hash,
    tier_of,
)

pack = msgspec.msgpack.encode
STORED = {"type": "BlockStored", "block_hashes": [7], "parent_block_hash": None, "token_ids": [1, 2], "block_size": 2}
REMOVED = {"type": "BlockRemoved", "block_hashes": [7]}


def payloads(path: Path) -> Iterator[bytes]:
    for line in path.read_text().splitlines():
        yield base64.b64decode(json.loads(line)["payload_b64"])


def recordings(golden_dir: Path) -> list[Path]:
    return [path for path in sorted(golden_dir.glob("*.jsonl")) if path.name != "sglang-loadstat.jsonl"]


def only_event(event: Any) -> Any:
    return decode_batch(pack([1.5, [event], 0])).events[0]


def test_every_recorded_event_decodes(golden_dir: Path) -> None:
    paths = recordings(golden_dir)
    assert len(paths) >= 40
    for path in paths:
        for payload in payloads(path):
            assert not [e for e in decode_batch(payload).events if isinstance(e, Rejected)], path.name


@pytest.mark.parametrize(
    ("pattern", "dialect"),
    [
        ("sglang-page*.jsonl", Dialect.SGLANG),
        ("vllm-dcp*.jsonl", Dialect.VLLM),
        ("vllm-extra.jsonl", Dialect.VLLM),
        ("vllm-hybrid*.jsonl", Dialect.VLLM),
        ("vllm-sched*.jsonl", Dialect.VLLM),
        ("vllm-wire-0.33.0.jsonl", Dialect.VLLM),
    ],
)
def test_current_wires_are_written_byte_for_byte(golden_dir: Path, pattern: str, dialect: Dialect) -> None:
    count = 0
    for path in sorted(golden_dir.glob(pattern)):
        for payload in payloads(path):
            batch = decode_batch(payload)
            events = [event for event in batch.events if not isinstance(event, Rejected)]
            assert encode_batch(events, ts=batch.ts, dp_rank=batch.dp_rank, dialect=dialect) == payload, path.name
            count += 1
    assert count


def test_all_vllm_versions_say_the_same(golden_dir: Path) -> None:
    newest = next(decode_batch(p) for p in payloads(golden_dir / "vllm-wire-0.33.0.jsonl"))
    stored = [event for event in newest.events if isinstance(event, BlockStored)]
    for path in sorted(golden_dir.glob("vllm-wire-0.*.jsonl")):
        old = next(decode_batch(payload) for payload in payloads(path))
        old_stored = [event for event in old.events if isinstance(event, BlockStored)]
        assert [(e.block_hashes, e.parent_block_hash, e.token_ids, e.block_size) for e in old_stored] == [
            (e.block_hashes, e.parent_block_hash, e.token_ids, e.block_size) for e in stored
        ], path.name
        assert isinstance(old.events[-1], AllBlocksCleared)


def test_the_metadata_map_at_index_7_carries_the_salt(golden_dir: Path) -> None:
    batches = [decode_batch(payload) for payload in payloads(golden_dir / "sglang-legacy-0.5.18-salted.jsonl")]
    salted = [e for e in batches[-1].events if isinstance(e, BlockStored)]
    assert [event.cache_salt for event in salted] == ["salt-1", "salt-1"]
    assert any(isinstance(event, BlockRemoved) for event in batches[-1].events)


def test_index_7_as_a_string_is_the_adapters_name() -> None:
    event = only_event(["BlockStored", [1], None, [5, 6], 2, 9, "GPU", "adapter-a", [["adapter-a"]], 3, "mamba", None])
    assert (event.lora_name, event.cache_salt, event.lora_id) == ("adapter-a", None, 9)
    assert (event.extra_keys, event.group_idx, event.kv_cache_spec_kind) == ([["adapter-a"]], 3, "mamba")


def test_batches_may_be_maps() -> None:
    vllm = decode_batch(pack({"events": [STORED], "ts": 2.0, "data_parallel_rank": 3}))
    sglang = decode_batch(pack({"ts": 2, "attn_dp_rank": 1, "events": [["AllBlocksCleared"]], "new_key": {}}))
    assert (vllm.dp_rank, sglang.dp_rank) == (3, 1)
    assert isinstance(vllm.events[0], BlockStored)
    assert isinstance(sglang.events[0], AllBlocksCleared)


@pytest.mark.parametrize("batch", [[1.0, []], [1.0, [], None], [1.0, [], 2, b"publisher-id"]])
def test_batches_may_be_shorter_or_longer_than_today(batch: list[Any]) -> None:
    assert decode_batch(pack(batch)).events == []


def test_what_is_unknown_is_ignored_and_what_is_missing_is_the_default() -> None:
    event = only_event({**STORED, "future": [1, {"x": 2}], "lookahead_token_ids": [[1]], "session_id": 5})
    assert (event.block_hashes, event.medium, event.session_id) == ([7], None, None)
    assert only_event(["BlockRemoved", [7], "GPU", 0, None, None, "more"]).medium == "GPU"
    assert only_event(["BlockStored", [7], None, [1, 2], 2]).lora_id is None


def test_a_map_reads_alike_in_any_key_order() -> None:
    backwards = dict(reversed(STORED.items()))
    assert list(backwards)[-1] == "type"
    assert only_event(backwards) == only_event(STORED)


@pytest.mark.parametrize(
    "bad",
    [
        {**STORED, "block_hashes": "no"},
        {**STORED, "token_ids": [1, -2]},
        {**STORED, "token_ids": [1, 2.5]},
        {**STORED, "block_size": -1},
        {"type": "BlockStored"},
        {"type": "TierBlocksCleared", "medium": "CPU"},
        {"no": "type"},
        ["BlockStored", [1]],
        [],
        7,
        None,
        "AllBlocksCleared",
    ],
)
def test_one_bad_event_never_costs_its_batch(bad: Any) -> None:
    batch = decode_batch(pack([1.0, [STORED, bad, REMOVED], 0]))
    assert [type(event) for event in batch.events] == [BlockStored, Rejected, BlockRemoved]
    rejected = batch.events[1]
    assert isinstance(rejected, Rejected)
    assert rejected.reason


def test_text_that_is_not_utf8_costs_only_its_event() -> None:
    broken = pack([1.0, [{**STORED, "medium": "GPU!"}, REMOVED], 0]).replace(b"GPU!", b"\xff\xfe\xfd\xfc")
    assert [type(event) for event in decode_batch(broken).events] == [Rejected, BlockRemoved]


NESTED = b"\x91" * 50_000 + b"\xc0"
NESTED_EVENT = pack([1.0, [STORED, {**REMOVED, "new": msgspec.Raw(NESTED)}], 0])


@pytest.mark.parametrize(
    "payload",
    [b"", b"\xc1", b"\x93", pack("text"), pack([1.0]), pack({"ts": 1.0}), b"\x93\xff", NESTED, NESTED_EVENT],
    ids=lambda payload: payload[:12].hex() or "empty",
)
def test_what_is_no_batch_is_refused_in_one_line(payload: bytes) -> None:
    with pytest.raises(EventDecodeError, match=rf"not an event batch \({len(payload)} bytes\)"):
        decode_batch(payload)


def test_a_hash_is_one_identity_however_it_was_sent() -> None:
    signed, unsigned = -3488128144981237669, 14958615928728313947
    assert normalize_hash(signed) == normalize_hash(unsigned) == unsigned
    assert only_event({**REMOVED, "block_hashes": [signed]}) == only_event({**REMOVED, "block_hashes": [unsigned]})
    assert only_event({**REMOVED, "block_hashes": [b"\x01" * 32]}).block_hashes == [b"\x01" * 32]


def test_pairs_are_flattened_and_counted_as_units() -> None:
    event = only_event({**STORED, "token_ids": [[1, 2], [2, 3]]})
    assert (event.pairs, list(event.token_ids)) == (True, [1, 2, 2, 3])
    assert (event.units_per_block, event.dense) == (4, True)


def test_fewer_hashes_than_chunks_is_not_dense() -> None:
    assert not only_event({**STORED, "token_ids": [1, 2, 3, 4]}).dense
    assert not only_event({**STORED, "block_hashes": [], "token_ids": [1, 2]}).dense
    assert not only_event({**STORED, "token_ids": [], "block_size": 0}).dense


@pytest.mark.parametrize(
    ("medium", "tier"),
    [("GPU", "GPU"), ("gpu", "GPU"), ("CPU_PINNED", "CPU"), ("cpu", "CPU"), ("STORAGE", "DISK"), ("DISK", "DISK")],
)
def test_media_of_both_engines_name_the_same_tiers(medium: str, tier: str) -> None:
    assert tier_of(medium) == tier


def test_an_unknown_medium_is_a_tier_of_its_own() -> None:
    assert tier_of("nixl-remote") == "nixl-remote"
    assert tier_of(None) is None


@pytest.mark.parametrize("dialect", list(Dialect))
def test_ids_may_come_in_any_sequence(dialect: Dialect) -> None:
    for ids in (range(4), array("I", range(4)), (0, 1, 2, 3)):
        event = BlockStored(block_hashes=[1, 2], parent_block_hash=None, token_ids=ids, block_size=2)
        decoded = decode_batch(encode_batch([event], ts=0.0, dp_rank=0, dialect=dialect)).events[0]
        assert isinstance(decoded, BlockStored)
        assert list(decoded.token_ids) == [0, 1, 2, 3]


def test_what_a_wire_cannot_carry_is_refused() -> None:
    wide = BlockStored(block_hashes=[2**64], parent_block_hash=None, token_ids=[1], block_size=1)
    pairs = BlockStored(block_hashes=[1], parent_block_hash=None, token_ids=[1, 2], block_size=1, pairs=True)
    with pytest.raises(EventEncodeError, match="cannot be written as sglang events"):
        encode_batch([wide], ts=0.0, dp_rank=0, dialect=Dialect.SGLANG)
    with pytest.raises(EventEncodeError, match="no token pairs"):
        encode_batch([pairs], ts=0.0, dp_rank=0, dialect=Dialect.VLLM)
