"""Wire bytes of any known engine version to event values.

Read here: vLLM 0.9.0 to 0.33.0 (tagged arrays up to 0.23, maps since 0.24) and SGLang 0.5.9 to 0.5.23 (tagged arrays up
to 0.5.19, with a metadata map at index 7 where a block is salted; maps since 0.5.20). Batches are arrays of two, three
or more items, or maps. The encoding is found per event, never configured.

Unknown map keys and extra array items are ignored, a missing optional field is its default, and an event that cannot be
used becomes a ``Rejected`` in its place: it never costs its batch. A payload in which nothing is unusual is read in one
pass by a compiled reader where one was built (``plain_batch``), to the same values.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from contract.events.model import (
    AllBlocksCleared,
    BlockHash,
    BlockRemoved,
    BlockStored,
    Event,
    EventBatch,
    Rejected,
    normalize_hash,
)
from contract.events.plain_batch import read_plain_batch
from contract.hashing import Ids, compact

__all__ = ["EventDecodeError", "decode_batch"]


class EventDecodeError(ValueError):
    """A payload that is not an event batch in any known dialect."""


# Fields that the router only passes on are Any: a new type in one of them must not cost the event.
class _StoredMap(msgspec.Struct, tag="BlockStored", gc=False):
    block_hashes: list[BlockHash]
    token_ids: msgspec.Raw
    block_size: int
    parent_block_hash: BlockHash | None = None
    medium: str | None = None
    lora_id: int | None = None
    lora_name: str | None = None
    cache_salt: str | None = None
    extra_keys: list[list[Any] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: Any = None
    session_id: Any = None
    locality: Any = None
    ownership: Any = None
    lookahead_token_ids: list[list[int]] | None = None


class _RemovedMap(msgspec.Struct, tag="BlockRemoved", gc=False):
    block_hashes: list[BlockHash]
    medium: str | None = None
    group_idx: int | None = None
    locality: Any = None
    ownership: Any = None


class _ClearedMap(msgspec.Struct, tag="AllBlocksCleared"):
    pass


class _StoredArray(msgspec.Struct, tag="BlockStored", array_like=True, gc=False):
    block_hashes: list[BlockHash]
    parent_block_hash: BlockHash | None
    token_ids: msgspec.Raw
    block_size: int
    lora_id: int | None = None
    medium: str | None = None
    name_or_metadata: str | dict[str, Any] | None = None  # vLLM >= 0.14: lora_name; SGLang 0.5.18, 0.5.19: a map
    extra_keys: list[list[Any] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: Any = None


class _RemovedArray(msgspec.Struct, tag="BlockRemoved", array_like=True, gc=False):
    block_hashes: list[BlockHash]
    medium: str | None = None
    group_idx: int | None = None


class _ClearedArray(msgspec.Struct, tag="AllBlocksCleared", array_like=True):
    pass


_AnyArray = _StoredArray | _RemovedArray | _ClearedArray
_AnyMap = _StoredMap | _RemovedMap | _ClearedMap


class _BatchArray(msgspec.Struct, array_like=True):
    ts: float
    events: list[msgspec.Raw]
    dp_rank: int | None = None


class _BatchMap(msgspec.Struct):
    ts: float
    events: list[msgspec.Raw]
    data_parallel_rank: int | None = None
    attn_dp_rank: int | None = None

    @property
    def dp_rank(self) -> int | None:
        return self.data_parallel_rank if self.data_parallel_rank is not None else self.attn_dp_rank


_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
_TokenId = Annotated[int, msgspec.Meta(ge=0)]
_BATCH_ARRAY = msgspec.msgpack.Decoder(_BatchArray)
_BATCH_MAP = msgspec.msgpack.Decoder(_BatchMap)
_EVENT_MAP = msgspec.msgpack.Decoder(_AnyMap)
_EVENT_ARRAY = msgspec.msgpack.Decoder(_AnyArray)
_TOKENS = msgspec.msgpack.Decoder(list[_TokenId])
_PAIRS = msgspec.msgpack.Decoder(list[tuple[_TokenId, _TokenId]])


def decode_batch(payload: bytes) -> EventBatch:
    """Decode one payload, whichever engine and version wrote it.

    Raises:
        EventDecodeError: the payload is no event batch at all. A bad event inside a good batch does not raise.
    """
    return read_plain_batch(payload) or _decode_any(payload)


def _decode_any(payload: bytes) -> EventBatch:
    decoder: msgspec.msgpack.Decoder[Any] = _BATCH_ARRAY if _is_array(payload) else _BATCH_MAP
    try:
        batch = decoder.decode(payload)
    except _UNREADABLE as error:
        raise EventDecodeError(f"not an event batch ({len(payload)} bytes): {error}") from None
    return EventBatch(ts=batch.ts, events=[_decode_event(raw) for raw in batch.events], dp_rank=batch.dp_rank)


def _is_array(raw: bytes | memoryview) -> bool:
    """Whether msgpack bytes start with an array header: fixarray, array16 or array32."""
    return bool(raw) and (0x90 <= raw[0] <= 0x9F or raw[0] in (0xDC, 0xDD))


def _decode_event(raw: msgspec.Raw) -> Event | Rejected:
    decoder: msgspec.msgpack.Decoder[Any] = _EVENT_ARRAY if _is_array(memoryview(raw)) else _EVENT_MAP
    try:
        return _to_event(decoder.decode(raw))
    except _UNREADABLE as error:
        return Rejected(str(error))


def _to_event(wire: Any) -> Event | Rejected:
    match wire:
        case _StoredMap():
            return _stored(
                wire,
                lora_name=wire.lora_name,
                cache_salt=wire.cache_salt,
                session_id=_text(wire.session_id),
                locality=_text(wire.locality),
                ownership=_text(wire.ownership),
                lookahead_token_ids=wire.lookahead_token_ids,
            )
        case _StoredArray(name_or_metadata=dict() as metadata):
            return _stored(
                wire,
                lora_name=_text(metadata.get("lora_name")),
                cache_salt=_text(metadata.get("cache_salt")),
                session_id=_text(metadata.get("session_id")),
            )
        case _StoredArray():
            return _stored(wire, lora_name=_text(wire.name_or_metadata))
        case _RemovedMap():
            return _removed(wire, locality=_text(wire.locality), ownership=_text(wire.ownership))
        case _RemovedArray():
            return _removed(wire)
    return AllBlocksCleared()


def _stored(wire: _StoredMap | _StoredArray, **fields: Any) -> Event | Rejected:
    if wire.block_size < 0:
        return Rejected(f"block_size must not be negative, got {wire.block_size}")
    token_ids, pairs = _decode_tokens(wire.token_ids)
    parent = wire.parent_block_hash
    window = wire.kv_cache_spec_sliding_window
    return BlockStored(
        block_hashes=[normalize_hash(raw) for raw in wire.block_hashes],
        parent_block_hash=None if parent is None else normalize_hash(parent),
        token_ids=token_ids,
        pairs=pairs,
        block_size=wire.block_size,
        medium=wire.medium,
        lora_id=wire.lora_id,
        extra_keys=wire.extra_keys,
        group_idx=wire.group_idx,
        kv_cache_spec_kind=wire.kv_cache_spec_kind,
        kv_cache_spec_sliding_window=window if isinstance(window, int) else None,
        **fields,
    )


def _removed(wire: _RemovedMap | _RemovedArray, **fields: str | None) -> BlockRemoved:
    return BlockRemoved(
        block_hashes=[normalize_hash(raw) for raw in wire.block_hashes],
        medium=wire.medium,
        group_idx=wire.group_idx,
        **fields,
    )


def _decode_tokens(raw: msgspec.Raw) -> tuple[Ids, bool]:
    """Token ids, and whether they came as EAGLE pairs (SGLang's bigram mode), which are flattened."""
    try:
        return compact(_TOKENS.decode(raw)), False
    except msgspec.ValidationError:
        return compact([token for pair in _PAIRS.decode(raw) for token in pair]), True


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
