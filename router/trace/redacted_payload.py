"""A batch of events without the ids, hashes, adapters, salts and sessions in it, in the words that it came in.

What a router makes of it is the same: as many blocks, held and dropped in the same order, and as much that it rejects.
Fields are kept by name: what an engine may add tomorrow is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from contract.events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    Event,
    EventDecodeError,
    Rejected,
    decode_batch,
)
from router.intake.content import content_of
from router.trace.block_chains import BlockChains
from router.trace.secret import Secret

__all__ = ["redacted_payload"]

_BATCH_ITEMS = 3
_BATCH_FIELDS = ("ts", "events", "data_parallel_rank", "attn_dp_rank")
_STORED_ITEMS, _REMOVED_ITEMS = 12, 4
_PARENT, _IDS, _ADAPTER_ID, _ADAPTER, _EXTRAS = 2, 3, 5, 7, 8
_KEPT = ("type", "block_size", "medium", "group_idx", "kv_cache_spec_kind", "kv_cache_spec_sliding_window")
_NO_EVENT = ["redacted"]
_UNREADABLE = (EventDecodeError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError, TypeError, ValueError)


def redacted_payload(payload: bytes, *, secret: Secret, chains: BlockChains) -> bytes:
    """Another payload for this one; equal ones for equal ones."""
    try:
        batch, raw = decode_batch(payload), msgspec.msgpack.decode(payload)
    except _UNREADABLE:
        return secret.no_batch(payload)
    if isinstance(raw, list):
        body = raw[:_BATCH_ITEMS]
        body[1] = _events(raw[1], batch.events, secret, chains)
        return msgspec.msgpack.encode(body)
    fields = {name: raw[name] for name in _BATCH_FIELDS if name in raw}
    fields["events"] = _events(raw["events"], batch.events, secret, chains)
    return msgspec.msgpack.encode(fields)


def _events(raw: Sequence[Any], events: Sequence[Event | Rejected], secret: Secret, chains: BlockChains) -> list[Any]:
    return [_event(one, event, secret, chains) for one, event in zip(raw, events, strict=True)]


def _event(raw: Any, event: Event | Rejected, secret: Secret, chains: BlockChains) -> Any:
    match event:
        case BlockStored() if isinstance(raw, list):
            return _stored_items(raw, event, secret, chains)
        case BlockStored():
            return _kept(raw) | _stored(raw, event, secret, chains)
        case BlockRemoved() if isinstance(raw, list):
            return [raw[0], [secret.name(name) for name in event.block_hashes], *raw[2:_REMOVED_ITEMS]]
        case BlockRemoved():
            return _kept(raw) | {"block_hashes": [secret.name(name) for name in event.block_hashes]}
        case AllBlocksCleared():
            return raw[:1] if isinstance(raw, list) else _kept(raw)
    return _NO_EVENT


def _kept(raw: dict[str, Any]) -> dict[str, Any]:
    return {name: raw[name] for name in _KEPT if name in raw}


def _stored(raw: dict[str, Any], event: BlockStored, secret: Secret, chains: BlockChains) -> dict[str, Any]:
    """What takes the place of the fields that are not kept."""
    above = event.parent_block_hash
    fields = {
        "block_hashes": [secret.name(name) for name in event.block_hashes],
        "parent_block_hash": None if above is None else secret.name(above),
        "token_ids": _ids(event, secret, chains),
        "session_id": None if event.session_id is None else secret.text(event.session_id),
        "extra_keys": _extras(event),
        "lora_id": None,
        "lora_name": None,
    }
    return {name: value for name, value in fields.items() if name in raw}


def _stored_items(raw: Sequence[Any], event: BlockStored, secret: Secret, chains: BlockChains) -> list[Any]:
    """The same by place."""
    items = list(raw[:_STORED_ITEMS])
    above = event.parent_block_hash
    items[1] = [secret.name(name) for name in event.block_hashes]
    items[_PARENT] = None if above is None else secret.name(above)
    items[_IDS] = _ids(event, secret, chains)
    session = {} if event.session_id is None else {"session_id": secret.text(event.session_id)}
    others = {
        _ADAPTER_ID: None,
        _ADAPTER: session if len(raw) > _ADAPTER and isinstance(raw[_ADAPTER], dict) else None,
        _EXTRAS: _extras(event),
    }
    for place, value in others.items():
        if place < len(items):
            items[place] = value
    return items


def _ids(event: BlockStored, secret: Secret, chains: BlockChains) -> list[Any]:
    """As many ids. A block's depend on its whole prefix, adapter and salt included, so these need not be kept."""
    keys = chains.keys(event)
    by_block = len(event.token_ids) // len(keys) if keys else 0
    ids = secret.block_ids(keys, units=by_block).tolist() if by_block else []
    return list(zip(ids[::2], ids[1::2], strict=True)) if event.pairs else ids


def _extras(event: BlockStored) -> list[list[str]] | None:
    """Only those that nobody can make sense of remain so."""
    if event.extra_keys is None or content_of(event) is not None:
        return None
    return [list(_NO_EVENT)] * len(event.extra_keys)
