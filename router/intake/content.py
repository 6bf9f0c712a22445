"""What a stored block is beyond its token ids: namespace, and whatever else went into the engine's hash.

SGLang (0.5.18 and later) names ``lora_name`` and ``cache_salt`` in fields of their own. vLLM (0.17 and later) lists for
each hash its *extra keys* in this order: LoRA name, multimodal identifiers, cache salt (only on the block that starts
at token 0), digest of prompt embeddings. vLLM up to 0.13 names an adapter by its number only.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import msgspec

from contract.events import BlockStored
from contract.hashing import block_key, block_keys, extend_key, namespace_key

__all__ = ["Content", "content_of", "store_keys"]

_Extras = Sequence[object]


class Content(msgspec.Struct, frozen=True):
    """``root`` starts the chain of a store that begins at token 0; ``extras[i]`` is what block i holds besides its ids.

    ``extras`` is None where no block holds anything else, which is nearly always.
    """

    root: int
    extras: Sequence[object] | None = None


_BASE = Content(namespace_key())


def content_of(event: BlockStored) -> Content | None:
    """Namespace and extras of a store, or None where its extra keys cannot be told apart by block."""
    if not event.extra_keys or not any(event.extra_keys):
        plain = event.cache_salt is None and event.lora_name is None and event.lora_id is None
        return _BASE if plain else Content(_root(event, event.cache_salt))
    if len(event.extra_keys) != len(event.block_hashes):
        return None
    rests = [_without_adapter(keys, event.lora_name) for keys in event.extra_keys]
    salt = event.cache_salt
    if event.parent_block_hash is None:
        vllm_salt, rests[0] = _split_salt(rests[0])
        salt = salt if vllm_salt is None else vllm_salt
    return Content(_root(event, salt), [rest or None for rest in rests] if any(rests) else None)


def _root(event: BlockStored, salt: str | None) -> int:
    """An adapter known by number only is a namespace of its own: never the base model's, and no name can spell it."""
    name = event.lora_name
    if name is None and event.lora_id is not None:
        name = f"id:{event.lora_id}"
    return namespace_key(lora_name=name, cache_salt=salt)


def _without_adapter(keys: _Extras | None, lora_name: str | None) -> _Extras:
    if not keys:
        return ()
    return keys[1:] if lora_name is not None and keys[0] == lora_name else keys


def _split_salt(keys: _Extras) -> tuple[str | None, _Extras]:
    """The cache salt of a first block, and the rest.

    A lone string is the salt. Two could be a salt and anything (vLLM up to 0.18 sends bare multimodal identifiers), so
    they stay what they are: something no text prompt has.
    """
    texts = [key for key in keys if isinstance(key, str)]
    if len(texts) != 1:
        return None, keys
    return texts[0], [key for key in keys if not isinstance(key, str)]


def store_keys(event: BlockStored, *, parent: int, extras: Sequence[object] | None) -> array[int]:
    """Keys of a dense store's blocks under their parent's key.

    Raises:
        TokenIdError: an id is negative or above 2**64-1.
    """
    if extras is None:
        return block_keys(event.token_ids, width=event.units_per_block, parent=parent)
    keys = array("Q")
    for block, extra in enumerate(extras):
        parent = block_key(block_tokens(event, block), parent=parent)
        parent = parent if extra is None else extend_key(parent, extra)
        keys.append(parent)
    return keys


def block_tokens(event: BlockStored, block: int) -> Sequence[int]:
    """The ids of one block of a dense store."""
    step = event.units_per_block
    return event.token_ids[block * step : (block + 1) * step]
