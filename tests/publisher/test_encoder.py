"""One event the wire cannot carry costs itself."""

from __future__ import annotations

import logging
from array import array

import pytest

from contract.events import AllBlocksCleared, BlockRemoved, BlockStored, Dialect, Event, decode_batch
from publisher.counters import PublisherCounters
from publisher.encoder import BatchEncoder

IDS = array("I", [1, 2, 3, 4, 5, 6])  # as they are read again


def stored(**fields: object) -> BlockStored:
    plain = {"block_hashes": [7], "parent_block_hash": None, "token_ids": IDS, "block_size": 6}
    return BlockStored(**(plain | fields))  # type: ignore[arg-type]


UNCARRIABLE: dict[str, tuple[Dialect, Event]] = {
    "a hash of more than 64 bits": (Dialect.SGLANG, BlockRemoved(block_hashes=[2**64])),
    "text that is no UTF-8": (Dialect.SGLANG, stored(medium="\ud800")),
    "pairs that do not pair": (Dialect.SGLANG, stored(token_ids=[1], pairs=True)),
    "extra keys for SGLang": (Dialect.SGLANG, stored(extra_keys=[["salt"]])),
    "pairs for vLLM": (Dialect.VLLM, stored(pairs=True)),
}


def encoder(counters: PublisherCounters, dialect: Dialect = Dialect.SGLANG) -> BatchEncoder:
    return BatchEncoder(dp_rank=2, dialect=dialect, clock=lambda: 12.5, counters=counters)


@pytest.mark.parametrize(("dialect", "bad"), UNCARRIABLE.values(), ids=UNCARRIABLE)
def test_an_event_the_wire_cannot_carry_is_left_out_and_counted(dialect: Dialect, bad: Event) -> None:
    counters = PublisherCounters()
    payload = encoder(counters, dialect).encode([AllBlocksCleared(), bad, stored()])
    assert payload is not None
    batch = decode_batch(payload)
    assert (batch.ts, batch.dp_rank) == (12.5, 2)
    assert batch.events == [AllBlocksCleared(), stored()]
    assert counters.encode_errors == 1


def test_nothing_is_left_of_a_batch_without_a_good_event() -> None:
    counters = PublisherCounters()
    assert encoder(counters).encode([BlockRemoved(block_hashes=[2**64])] * 3) is None
    assert counters.encode_errors == 3


def test_repeated_errors_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        encoder(PublisherCounters()).encode([BlockRemoved(block_hashes=[2**64])] * 3)
    assert [record.getMessage() for record in caplog.records] == [
        "event left out of its batch, 1 so far: cannot be written as sglang events: "
        "can't serialize ints < -2**63 or > 2**64 - 1"
    ]
