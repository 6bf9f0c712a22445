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

_BATCH_FIELDS = ("ts", "events", "data_parallel_rank", "attn_dp_rank")
"""By name; by place, so many of them."""

_BATCH_ITEMS = 3

_STORED_ITEMS, _REMOVED_ITEMS = 12, 4
_PARENT, _IDS, _ADAPTER_ID, _ADAPTER, _EXTRAS = 2, 3, 5, 7, 8
_KEPT = ("type", "block_size", "medium", "group_idx", "kv_cache_spec_kind", "kv_cache_spec_sliding_window")
_NO_EVENT = ["redacted"]
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, TypeError, ValueError)
_ITEMS: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(list[msgspec.Raw] | dict[str, msgspec.Raw])
_RAW_EVENTS = msgspec.msgpack.Decoder(list[msgspec.Raw])


def redacted_payload(payload: bytes, *, secret: Secret, chains: BlockChains) -> bytes:
    """Another payload for this one; equal ones for equal ones."""
    try:
        batch = decode_batch(payload)
        items = _ITEMS.decode(payload)
    except (EventDecodeError, *_UNREADABLE):
        return secret.no_batch(payload)
    raw = items if isinstance(items, dict) else dict(zip(_BATCH_FIELDS[:_BATCH_ITEMS], items, strict=False))
    events = zip(_RAW_EVENTS.decode(raw["events"]), batch.events, strict=True)
    redacted: Any = {name: raw[name] for name in _BATCH_FIELDS if name in raw}
    redacted["events"] = [_event(_read(one, event), event, secret, chains) for one, event in events]
    return msgspec.msgpack.encode(redacted if isinstance(items, dict) else list(redacted.values()))


def _read(raw: msgspec.Raw, event: Event | Rejected) -> Any:
    """An event as it came, or, where only parts of it that nobody asks for can be read, what was read of it."""
    try:
        return msgspec.msgpack.decode(raw)
    except _UNREADABLE:
        return {"type": type(event).__name__} | msgspec.structs.asdict(event)


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
