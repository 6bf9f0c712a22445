"""Joins neighbouring events of one batch where one event says the same (SGLang 0.5.23)."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from contract.events import BlockRemoved, BlockStored, Event

__all__ = ["coalesce"]


def coalesce(events: Iterable[Event]) -> list[Event]:
    """The same events, in order, in fewer structs.

    A store joins the store right before it when its parent is that one's last hash and everything else agrees;
    a removal joins the removal right before it when the medium agrees.
    """
    joined: list[Event] = []
    run: list[Event] = []
    for event in events:
        if run and not _continues(event, run[-1]):
            joined.append(_join(run))
            run = []
        run.append(event)
    if run:
        joined.append(_join(run))
    return joined


def _continues(event: Event, tail: Event) -> bool:
    match event, tail:
        case BlockStored(), BlockStored():
            return event.parent_block_hash == tail.block_hashes[-1] and _labels(event) == _labels(tail)
        case BlockRemoved(), BlockRemoved():
            return event.medium == tail.medium
    return False


def _labels(event: BlockStored) -> tuple[object, ...]:
    return event.medium, event.lora_id, event.lora_name, event.block_size, event.cache_salt, event.session_id


def _join(run: list[Event]) -> Event:
    first = run[0]
    if len(run) == 1:
        return first
    if isinstance(first, BlockStored):
        stored = [event for event in run if isinstance(event, BlockStored)]
        return msgspec.structs.replace(
            first,
            block_hashes=[raw for event in stored for raw in event.block_hashes],
            token_ids=[token for event in stored for token in event.token_ids],
        )
    removed = [event for event in run if isinstance(event, BlockRemoved)]
    return BlockRemoved(block_hashes=[raw for event in removed for raw in event.block_hashes], medium=removed[0].medium)
