"""Batches in pieces: the pieces say what the batch says, and each is quickly applied."""

from __future__ import annotations

from array import array
from typing import Any

import pytest

from contract.events import AllBlocksCleared, BlockRemoved, BlockStored, Event, EventBatch, Rejected
from contract.hashing import block_keys
from router.intake import slices as slicing
from router.intake.index import BlockIndex
from router.prompt import Prompt

WIDTH = 6
MOST = 10


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slicing, "BLOCKS_A_SLICE", MOST)


def stored(count: int, **fields: Any) -> BlockStored:
    ids = array("I", range(count * WIDTH))
    fields = {"block_size": WIDTH, "medium": "GPU", "parent_block_hash": None} | fields
    return BlockStored(block_hashes=list(range(1, count + 1)), token_ids=ids, **fields)


def batch(*events: Event | Rejected) -> EventBatch:
    return EventBatch(ts=1.5, events=list(events), dp_rank=2)


def pieces(*events: Event | Rejected) -> list[EventBatch]:
    return list(slicing.slices(batch(*events)))


def test_a_small_batch_is_itself() -> None:
    whole = batch(stored(MOST))
    assert list(slicing.slices(whole)) == [whole]
    assert pieces() == []


def test_many_events_are_handed_out_some_at_a_time_in_order() -> None:
    events = [BlockRemoved(block_hashes=[name]) for name in range(150)]
    found = list(slicing.slices(batch(*events, AllBlocksCleared(), Rejected("x"))))
    assert [event for piece in found for event in piece.events] == [*events, AllBlocksCleared(), Rejected("x")]
    assert all(len(piece.events) <= MOST for piece in found[:-1])  # a block each
    assert all((piece.ts, piece.dp_rank) == (1.5, 2) for piece in found)


def test_a_huge_chain_is_stored_piece_by_piece_to_the_same_index() -> None:
    count, pieces_of_it = 3 * MOST + 4, pieces(stored(3 * MOST + 4), BlockRemoved(block_hashes=list(range(20, 35))))
    assert len(pieces_of_it) > 4
    index = BlockIndex()
    handle = index.add_lane()
    for piece in pieces_of_it[:4]:
        index.apply(handle, piece)
    prompt = Prompt(range(count * WIDTH))
    assert index.match(prompt, [handle])[handle].tokens == count * WIDTH
    assert len(index) == len(set(block_keys(range(count * WIDTH), width=WIDTH)))
    for piece in pieces_of_it[4:]:
        index.apply(handle, piece)
    assert index.match(prompt, [handle])[handle].tokens == 19 * WIDTH
    index.check_invariants()


@pytest.mark.parametrize("fields", [{"session_id": "s"}, {"extra_keys": [["x"]] * 25}, {"block_size": WIDTH - 1}])
def test_what_must_be_judged_as_a_whole_stays_whole(fields: dict[str, Any]) -> None:
    event = stored(25, **fields)
    assert pieces(event) == [batch(event)]
