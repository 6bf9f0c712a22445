"""``trace redact``: nothing of what was asked is left, and whatever a trace is read for comes out as before."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
from made_trace import MadeTrace, store

from contract.events import AllBlocksCleared, BlockRemoved, BlockStored, Event, EventDecodeError, Rejected, decode_batch
from contract.hashing import block_keys, namespace_key
from router.prompt import Prompt
from router.trace.block_chains import BlockChains
from router.trace.flags import run_trace
from router.trace.reader import TraceReader
from router.trace.records import FrameHeard, PrefixKeys, Record, Routed, StreamTurned, Turn, pack_ids, pack_keys
from router.trace.redacted_payload import redacted_payload
from router.trace.replayer import Replayer
from router.trace.secret import Secret
from router.trace.writer import TraceWriter

A, B = "http://10.0.0.1:30000", "http://10.0.0.2:30000"
CHANCE = Random(3)
SALT, ADAPTER, SESSION = "salt-of-somebody", "adapter-of-somebody", "session-of-somebody"


def ids(count: int) -> list[int]:
    """Ids that no other number in a trace is likely to equal."""
    return CHANCE.choices(range(10**8, 10**9), k=count)


SHARED = ids(24)
PROMPTS = [SHARED + ids(19) for _ in range(6)]


def redact(source: Path, target: Path) -> Path:
    assert run_trace(["redact", str(source), str(target)]) == 0
    return target


def lanes_of(path: Path) -> list[Any]:
    """Everything that streams and index say at the end, but the engine's names of blocks."""
    replayer = Replayer()
    for record in TraceReader(path):
        replayer.feed(record)
    return [
        (
            lane.name,
            lane.status,
            lane.totals(),
            replayer.index.stats(lane.handle),
            sorted((row.tier, str(row.group), row.copies) for row in replayer.index.blocks(lane.handle)),
        )
        for lane in replayer.lanes.values()
    ]


def secrets_in(path: Path) -> Iterator[Any]:
    """All ids, hashes and keys that a trace holds."""
    for record in TraceReader(path):
        match record:
            case FrameHeard():
                try:
                    events = decode_batch(record.payload).events
                except EventDecodeError:
                    yield record.payload
                    continue
                for event in events:
                    if isinstance(event, BlockStored):
                        yield from (*event.block_hashes, *event.token_ids)
                    if isinstance(event, BlockStored | BlockRemoved):
                        yield from event.block_hashes
            case Routed():
                yield from (key for prefix in record.prefixes for key in prefix.keys)
                yield from record.token_ids or ()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Two lanes; batches out of order, a restart, an adapter, a salt and a session, a payload that is no batch."""
    made = MadeTrace(A, B, can_replay=True)
    made.frame(0, AllBlocksCleared())
    for place, prompt in enumerate(PROMPTS):
        made.request(place % 2, prompt, predicted=24 if place > 1 else 0, reported=24 if place > 1 else 0)
        made.frame(place % 2, store(prompt[:30]))
    late = store(PROMPTS[0][:42])
    tail = msgspec.structs.replace(
        late, block_hashes=late.block_hashes[5:], parent_block_hash=late.block_hashes[4], token_ids=PROMPTS[0][30:42]
    )
    made.frame(0, tail, seq=9)  # before the batch that it follows
    made.frame(0, BlockRemoved(block_hashes=store(PROMPTS[2][:30]).block_hashes[-1:]), seq=8, replayed=True)
    made.frame(0, tail, seq=9, replayed=True)
    made.add(StreamTurned(at=made.at, lane=0, turn=Turn.REPLAY_ENDED))
    named = msgspec.structs.replace(store(PROMPTS[1][:12]), lora_name=ADAPTER, session_id=SESSION, cache_salt=SALT)
    made.frame(1, msgspec.structs.replace(named, block_hashes=[71, 72]))
    made.add(FrameHeard(at=made.at, lane=1, replayed=False, topic=b"kv", seq=4, payload=b"no batch"))
    adapted = Prompt(PROMPTS[1][:-1], lora_name=ADAPTER, cache_salt=SALT)
    made.request(1, PROMPTS[1], predicted=12, reported=12)
    asked = next(record for record in reversed(made.records) if isinstance(record, Routed))
    made.records[made.records.index(asked)] = msgspec.structs.replace(
        asked,
        namespaced=True,
        prefixes=[PrefixKeys(6, False, pack_keys(adapted.keys(width=6)))],
        packed_ids=pack_ids(PROMPTS[1][:-1]),
    )
    return made.write(tmp_path / "a.kvtrace")


def what_if(path: Path, capsys: pytest.CaptureFixture[str], *flags: str) -> dict[str, Any]:
    assert run_trace(["what-if", str(path), "--json", *flags]) == 0
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    return answer | {"file": ""}


def test_streams_hits_and_what_if_are_as_before_and_no_id_is_left(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = redact(file, tmp_path / "b.kvtrace")
    assert lanes_of(copy) == lanes_of(file)
    before = what_if(file, capsys, "--block-size", "6")
    assert what_if(copy, capsys, "--block-size", "6") == before
    assert before["outcomes"][0]["held"] >= 24 * 4 + 12
    assert not {*secrets_in(copy)} & {*secrets_in(file)}
    raw = b"".join(map(msgspec.msgpack.encode, TraceReader(copy)))
    assert not [text for text in (SALT, ADAPTER, SESSION) if text.encode() in raw]
    assert all(record.token_ids is None for record in TraceReader(copy) if isinstance(record, Routed))


def test_the_key_is_another_one_each_time(file: Path, tmp_path: Path) -> None:
    one, other = redact(file, tmp_path / "b.kvtrace"), redact(file, tmp_path / "c.kvtrace")
    assert not {*secrets_in(one)} & {*secrets_in(other)} - {0}


def test_equal_ids_of_unequal_prefixes_become_unequal(tmp_path: Path) -> None:
    """Else it would be a cipher that counting breaks."""
    made = MadeTrace(A)
    made.frame(0, store([5] * 60))
    copy = redact(made.write(tmp_path / "b.kvtrace"), tmp_path / "c.kvtrace")
    (event,) = [event for record in TraceReader(copy) for event in stores(record)]
    assert len({tuple(event.token_ids[start : start + 6]) for start in range(0, 60, 6)}) == 10


def stores(record: Record) -> Sequence[BlockStored]:
    events = decode_batch(record.payload).events if isinstance(record, FrameHeard) else ()
    return [event for event in events if isinstance(event, BlockStored)]


def test_every_dialect_keeps_its_words_and_leads_to_the_same_blocks(golden_dir: Path, tmp_path: Path) -> None:
    for golden in sorted(golden_dir.glob("*.jsonl")):
        file = tmp_path / f"{golden.stem}.kvtrace"
        assert run_trace(["convert", str(golden), str(file)]) == 0
        copy = redact(file, tmp_path / f"{golden.stem}-redacted.kvtrace")
        assert lanes_of(copy) == lanes_of(file), golden.name
        shared = {*secrets_in(copy)} & {*secrets_in(file)} - {0}
        assert not shared, golden.name
        assert [shape(record) for record in TraceReader(copy)] == [shape(record) for record in TraceReader(file)]


def test_whatever_comes_is_redacted_to_what_reads_the_same(golden_dir: Path) -> None:
    """Recorded payloads with bytes changed, lost and added: as many events of the same kinds, or refused."""
    chance, secret = Random(5), Secret(b"k" * 32)
    lines = [line for golden in sorted(golden_dir.glob("*.jsonl")) for line in golden.read_bytes().splitlines()]
    payloads = [base64.b64decode(json.loads(line)["payload_b64"]) for line in lines]
    for _ in range(3_000):
        payload = bytearray(chance.choice(payloads))
        for _ in range(chance.choice([1, 1, 2, 5])):
            place = chance.randrange(len(payload))
            payload[place : place + chance.randrange(2)] = chance.randbytes(chance.randrange(2))
        redacted = redacted_payload(bytes(payload), secret=secret, chains=BlockChains())
        assert outline(redacted) == outline(bytes(payload)), bytes(payload)


def outline(payload: bytes) -> Any:
    """What is left of a batch when all that says what was asked is taken away."""
    try:
        batch = decode_batch(payload)
    except EventDecodeError:
        return None
    return repr(batch.ts), batch.dp_rank, [outline_of(event) for event in batch.events]


def outline_of(event: Event | Rejected) -> Any:
    match event:
        case BlockStored():
            counts = len(event.block_hashes), len(event.token_ids), event.block_size, event.pairs
            kind = event.medium, event.group_idx, event.kv_cache_spec_kind, event.kv_cache_spec_sliding_window
            return counts, kind, event.parent_block_hash is None, event.session_id is None
        case BlockRemoved():
            return len(event.block_hashes), event.medium, event.group_idx
    return type(event)


def shape(record: Record) -> Any:
    """A batch's kind of encoding, and its events'."""
    if not isinstance(record, FrameHeard):
        return type(record)
    try:
        decode_batch(record.payload)
    except EventDecodeError:
        return "no batch"
    raw = msgspec.msgpack.decode(record.payload)
    events = raw[1] if isinstance(raw, list) else raw["events"]
    return type(raw), [type(event) for event in events]


def test_a_prompt_s_keys_become_those_of_the_new_ids_of_its_blocks(tmp_path: Path) -> None:
    """So any router that is shown the new events finds for the new keys what the old one found for the old."""
    prompt = PROMPTS[0]
    made = MadeTrace(A)
    made.frame(0, store(prompt[:36]))
    made.request(0, prompt, predicted=36, reported=36, widths=(6,))
    copy = redact(made.write(tmp_path / "b.kvtrace"), tmp_path / "c.kvtrace")
    (event,) = [event for record in TraceReader(copy) for event in stores(record)]
    (routed,) = [record for record in TraceReader(copy) if isinstance(record, Routed)]
    keys = block_keys(event.token_ids, width=6, parent=namespace_key())
    assert list(routed.prefixes[0].keys[:6]) == list(keys)


def test_a_redaction_needs_a_place_and_a_trace(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "notes").write_text("no trace")
    for source, target, said in [
        (file, file, "exists already"),
        (tmp_path / "notes", tmp_path / "b.kvtrace", "is no .kvtrace file"),
        (tmp_path / "none", tmp_path / "b.kvtrace", "No such file"),
        (file, tmp_path / "none" / "b.kvtrace", f"cannot write {tmp_path}/none/b.kvtrace: No such file"),
    ]:
        assert run_trace(["redact", str(source), str(target)]) == 1
        error = capsys.readouterr().err
        assert said in error
        assert error.count("\n") == 1
    assert not (tmp_path / "b.kvtrace").exists()
    with TraceWriter(tmp_path / "empty.kvtrace"):
        pass
    assert run_trace(["redact", str(tmp_path / "empty.kvtrace"), str(tmp_path / "b.kvtrace")]) == 1
    assert "there is no record to write" in capsys.readouterr().err
