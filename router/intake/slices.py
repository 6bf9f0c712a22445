"""Batches in pieces that are quickly applied, so that a snapshot of a whole cache stalls nobody else.

Many events are handed out some at a time; one that names very many blocks is taken apart into several that say the same
in order. What cannot be taken apart without changing what it says stays whole. Values only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from contract.events import BlockRemoved, BlockStored, Event, EventBatch, Rejected

__all__ = ["EVENTS_A_SLICE", "is_small", "slices", "weight"]

EVENTS_A_SLICE = 64
BLOCKS_A_SLICE = 4096
_EVENT_WEIGHT = BLOCKS_A_SLICE // EVENTS_A_SLICE
_Any = Event | Rejected
_NAMING_BLOCKS = (BlockStored, BlockRemoved)


def is_small(batch: EventBatch) -> bool:
    """Whether a batch is one event that is no more than a slice; nearly every batch of an engine is."""
    return len(batch.events) == 1 and _blocks(batch.events[0]) <= BLOCKS_A_SLICE


def weight(batch: EventBatch) -> int:
    """What a batch costs to apply, as a number of blocks; an event costs what very many blocks do."""
    return sum(_EVENT_WEIGHT + _blocks(event) for event in batch.events)


def slices(batch: EventBatch) -> Iterator[EventBatch]:
    """The batch as batches of at most ``EVENTS_A_SLICE`` events and about ``BLOCKS_A_SLICE`` blocks."""
    if is_small(batch):
        yield batch
        return
    events: list[_Any] = []
    blocks = 0
    for event in _small(batch.events):
        if len(events) == EVENTS_A_SLICE or (events and blocks + _blocks(event) > BLOCKS_A_SLICE):
            yield EventBatch(ts=batch.ts, events=events, dp_rank=batch.dp_rank)
            events, blocks = [], 0
        events.append(event)
        blocks += _blocks(event)
    if events:
        yield EventBatch(ts=batch.ts, events=events, dp_rank=batch.dp_rank)


def _blocks(event: _Any) -> int:
    return len(event.block_hashes) if isinstance(event, _NAMING_BLOCKS) else 0


def _small(events: Iterable[_Any]) -> Iterator[_Any]:
    for event in events:
        if _blocks(event) <= BLOCKS_A_SLICE:
            yield event
        elif isinstance(event, BlockRemoved):
            names = event.block_hashes
            for start in range(0, len(names), BLOCKS_A_SLICE):
                yield msgspec.structs.replace(event, block_hashes=names[start : start + BLOCKS_A_SLICE])
        elif isinstance(event, BlockStored) and _is_chain(event):
            yield from _links(event)
        else:
            yield event


def _is_chain(event: BlockStored) -> bool:
    """Whether each block says all there is to say of it: a session's report, for one, is judged as a whole."""
    return event.dense and event.extra_keys is None and event.session_id is None


def _links(event: BlockStored) -> Iterator[BlockStored]:
    names, step, parent = event.block_hashes, event.units_per_block, event.parent_block_hash
    for start in range(0, len(names), BLOCKS_A_SLICE):
        end = start + BLOCKS_A_SLICE
        yield msgspec.structs.replace(
            event,
            block_hashes=names[start:end],
            parent_block_hash=parent,
            token_ids=event.token_ids[start * step : end * step],
            lookahead_token_ids=None,
        )
        parent = names[min(end, len(names)) - 1]
