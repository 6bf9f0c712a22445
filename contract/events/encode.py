"""Event values to the wire of SGLang 0.5.23 or vLLM 0.33.0, byte for byte as those engines write them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from contract.events.model import (
    AllBlocksCleared,
    BlockHash,
    BlockRemoved,
    BlockStored,
    Dialect,
    Event,
)

__all__ = ["EventEncodeError", "encode_batch"]


class EventEncodeError(ValueError):
    """An event that the chosen wire cannot carry."""


class _SglangStored(msgspec.Struct, tag="BlockStored", omit_defaults=True, gc=False):
    block_hashes: list[BlockHash]
    parent_block_hash: BlockHash | None
    token_ids: Sequence[Any]
    block_size: int
    lora_id: int | None
    medium: str | None = None
    cache_salt: str | None = None
    session_id: str | None = None
    lora_name: str | None = None


class _SglangRemoved(msgspec.Struct, tag="BlockRemoved", omit_defaults=True, gc=False):
    block_hashes: list[BlockHash]
    medium: str | None = None


class _VllmStored(msgspec.Struct, tag="BlockStored", omit_defaults=True, gc=False):
    block_hashes: list[BlockHash]
    parent_block_hash: BlockHash | None
    token_ids: Sequence[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: Sequence[Sequence[object] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None
    locality: str | None = None
    ownership: str | None = None
    session_id: str | None = None
    lookahead_token_ids: Sequence[Sequence[int]] | None = None  # the 16th entry: hence msgspec's map16 header


class _VllmRemoved(msgspec.Struct, tag="BlockRemoved", omit_defaults=True, gc=False):
    block_hashes: list[BlockHash]
    medium: str | None
    group_idx: int | None = None
    locality: str | None = None
    ownership: str | None = None


class _Cleared(msgspec.Struct, tag="AllBlocksCleared"):
    pass


_ENCODER = msgspec.msgpack.Encoder()


def encode_batch(events: Iterable[Event], *, ts: float, dp_rank: int | None, dialect: Dialect) -> bytes:
    """Encode one batch as ``[ts, events, dp_rank]``.

    Raises:
        EventEncodeError: a hash, token id or text that msgpack cannot carry, or a field that the dialect does not have.
    """
    to_wire = _to_sglang if dialect is Dialect.SGLANG else _to_vllm
    try:
        return _ENCODER.encode([float(ts), [to_wire(event) for event in events], dp_rank])
    except EventEncodeError:
        raise
    except (OverflowError, TypeError, ValueError, msgspec.MsgspecError) as error:
        raise EventEncodeError(f"cannot be written as {dialect} events: {error}") from error


def _to_sglang(event: Event) -> msgspec.Struct:
    match event:
        case BlockStored():
            if event.extra_keys or event.group_idx:
                raise EventEncodeError("SGLang's wire has no extra_keys and no cache groups")
            return _SglangStored(
                block_hashes=[_signed(raw) for raw in event.block_hashes],
                parent_block_hash=None if event.parent_block_hash is None else _signed(event.parent_block_hash),
                token_ids=_pairs(event.token_ids) if event.pairs else _plain(event.token_ids),
                block_size=event.block_size,
                lora_id=event.lora_id,
                medium=event.medium,
                cache_salt=event.cache_salt,
                session_id=event.session_id,
                lora_name=event.lora_name,
            )
        case BlockRemoved():
            return _SglangRemoved([_signed(raw) for raw in event.block_hashes], event.medium)
        case AllBlocksCleared():
            return _Cleared()


def _to_vllm(event: Event) -> msgspec.Struct:
    match event:
        case BlockStored():
            if event.pairs:
                raise EventEncodeError("vLLM's wire has no token pairs")
            return _VllmStored(
                block_hashes=list(event.block_hashes),
                parent_block_hash=event.parent_block_hash,
                token_ids=_plain(event.token_ids),
                block_size=event.block_size,
                lora_id=event.lora_id,
                medium=event.medium,
                lora_name=event.lora_name,
                extra_keys=event.extra_keys,
                group_idx=event.group_idx,
                kv_cache_spec_kind=event.kv_cache_spec_kind,
                kv_cache_spec_sliding_window=event.kv_cache_spec_sliding_window,
                locality=event.locality,
                ownership=event.ownership,
                session_id=event.session_id,
                lookahead_token_ids=event.lookahead_token_ids,
            )
        case BlockRemoved():
            return _VllmRemoved(
                list(event.block_hashes), event.medium, event.group_idx, event.locality, event.ownership
            )
        case AllBlocksCleared():
            return _Cleared()


def _signed(raw: BlockHash) -> BlockHash:
    """SGLang sends 64-bit hashes signed; anything wider is left for the encoder to refuse."""
    return raw - 2**64 if isinstance(raw, int) and 2**63 <= raw < 2**64 else raw


def _plain(token_ids: Sequence[int]) -> list[int]:
    """A list, which msgpack knows how to write; ranges and arrays of ids are as welcome."""
    return token_ids if isinstance(token_ids, list) else list(token_ids)


def _pairs(flat: Sequence[int]) -> list[tuple[int, int]]:
    return list(zip(flat[::2], flat[1::2], strict=True))
