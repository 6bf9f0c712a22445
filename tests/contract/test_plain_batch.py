"""The compiled reader of plain batches says what the tolerant decoder says, or nothing."""

from __future__ import annotations

import base64
import json
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.events import EventBatch, EventDecodeError, decode, plain_batch
from contract.events.plain_batch import read_plain_batch
from contract.keys_core import PLAIN_ONLY

pytest.importorskip("contract.events._wire", reason="the compiled reader was not built")
pytestmark = pytest.mark.skipif(PLAIN_ONLY, reason="KVSTEER_PLAIN_PYTHON leaves the compiled reader out")

SEED = 5
pack = msgspec.msgpack.encode
maybe = st.none
numbers = st.one_of(st.integers(0, 200), st.integers(-(2**63), 2**64 - 1))
hashes = st.one_of(numbers, st.binary(max_size=33))
texts = st.one_of(st.sampled_from(["GPU", "CPU_PINNED", ""]), st.text(max_size=40))
oddities = st.one_of(
    maybe(), st.booleans(), numbers, texts, st.floats(allow_nan=False), st.just([["x"]]), st.just({"a": 1})
)
ids = st.one_of(
    st.lists(st.integers(0, 2**32 - 1), max_size=20),
    st.lists(st.integers(0, 300), max_size=20),
    st.lists(st.one_of(numbers, st.floats(0, 3)), max_size=4),
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=3),
)
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "block_hashes": st.lists(hashes, max_size=20),
    "parent_block_hash": st.one_of(maybe(), hashes),
    "token_ids": ids,
    "block_size": st.one_of(st.integers(0, 70_000), numbers),
    "lora_id": st.one_of(maybe(), numbers),
    "medium": st.one_of(maybe(), texts),
    "lora_name": st.one_of(maybe(), texts),
    "extra_keys": st.one_of(maybe(), st.sampled_from([[], [None], [None, None], [["salt"], None]])),
    "group_idx": st.one_of(maybe(), numbers),
    "kv_cache_spec_kind": st.one_of(maybe(), texts),
    "kv_cache_spec_sliding_window": st.one_of(maybe(), numbers),
    "cache_salt": st.one_of(maybe(), texts),
    "session_id": st.one_of(maybe(), texts),
    "locality": texts,
}
NEEDED = ("block_hashes", "token_ids", "block_size")
IN_ARRAYS = list(FIELDS)[:11]


@st.composite
def maps(draw: st.DrawFn) -> dict[str, Any]:
    tag = draw(st.sampled_from(["BlockStored", "BlockStored", "BlockRemoved", "AllBlocksCleared", "Other"]))
    names = NEEDED if tag == "BlockStored" else NEEDED[:1] if tag == "BlockRemoved" else ()
    names = [*names, *draw(st.lists(st.sampled_from(list(FIELDS)), max_size=5, unique=True))]
    fields = [("type", tag), *((name, draw(FIELDS[name])) for name in dict.fromkeys(names))]
    return dict(draw(st.permutations(fields)))


@st.composite
def arrays(draw: st.DrawFn) -> list[Any]:
    tag = draw(st.sampled_from(["BlockStored", "BlockStored", "BlockRemoved", "AllBlocksCleared"]))
    names = IN_ARRAYS if tag == "BlockStored" else ["block_hashes", "medium", "group_idx"]
    count = draw(st.integers(0 if tag == "AllBlocksCleared" else 1, len(names)))
    return [tag, *(draw(FIELDS[name]) for name in names[:count]), *draw(st.lists(oddities, max_size=1))]


@st.composite
def spoilt(draw: st.DrawFn) -> Any:
    event = draw(st.one_of(maps(), arrays()))
    place = draw(st.sampled_from(list(event) if isinstance(event, dict) else range(len(event))))
    event[place] = draw(oddities)
    return event


batches = st.tuples(
    st.one_of(st.floats(allow_nan=False), numbers),
    st.lists(st.one_of(maps(), arrays(), spoilt()), max_size=4),
    st.one_of(maybe(), st.integers(0, 70)),
)


def tolerant(payload: bytes) -> EventBatch | None:
    try:
        return decode._decode_any(payload)
    except EventDecodeError:
        return None


@given(batches)
def test_what_the_reader_takes_it_reads_as_the_tolerant_decoder_does(batch: Any) -> None:
    payload = pack(batch)
    found = read_plain_batch(payload)
    assert found is None or found == tolerant(payload)


@given(st.one_of(maps(), arrays()), st.data())
def test_broken_bytes_are_left_to_the_tolerant_decoder_or_read_alike(event: Any, data: Any) -> None:
    """Cut short, with bytes behind, and with one byte changed anywhere: never another answer, never past the end."""
    payload = pack([1.5, [event], 0])
    at, byte = data.draw(st.integers(0, len(payload) - 1)), data.draw(st.binary(min_size=1, max_size=1))
    for broken in (payload[:at], payload + byte, payload[:at] + byte + payload[at + 1 :]):
        found = read_plain_batch(broken)
        assert found is None or repr(found) == repr(tolerant(broken))  # a time may be NaN, which equals nothing


def test_every_recorded_payload_is_read_alike_and_most_are_plain(golden_dir: Path) -> None:
    plain = count = 0
    for path in sorted(golden_dir.glob("*.jsonl")):
        for line in path.read_text().splitlines():
            payload = base64.b64decode(json.loads(line)["payload_b64"])
            found = read_plain_batch(payload)
            assert found is None or found == tolerant(payload), path.name
            plain, count = plain + (found is not None), count + 1
    assert plain > 0.8 * count


@pytest.mark.parametrize("encode", [list, dict])
def test_what_engines_send_is_plain(encode: type) -> None:
    """Else all of this would be for nothing, and nobody would see it."""
    chance = random.Random(SEED)
    tokens = [chance.randrange(150_000) for _ in range(256)]
    stored = {"type": "BlockStored", "block_hashes": [-1, 2**64 - 1, b"\x01" * 32], "parent_block_hash": None}
    stored |= {"token_ids": tokens, "block_size": 16, "lora_id": None, "medium": "GPU", "lora_name": None}
    stored |= {"extra_keys": [None] * 3, "group_idx": 0, "kv_cache_spec_kind": "full_attention"}
    removed = {"type": "BlockRemoved", "block_hashes": [7], "medium": "GPU"}
    events = [stored, removed, {"type": "AllBlocksCleared"}]
    payload = pack([1.5, [list(event.values()) if encode is list else event for event in events], 3])
    found = read_plain_batch(payload)
    assert found is not None
    assert found == tolerant(payload)


def test_without_the_reader_the_tolerant_decoder_reads_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    payload = pack([1.5, [{"type": "BlockRemoved", "block_hashes": [7]}], 0])
    with_reader = decode.decode_batch(payload)
    monkeypatch.setattr(plain_batch, "_MAKERS", None)
    assert read_plain_batch(payload) is None
    assert decode.decode_batch(payload) == with_reader
