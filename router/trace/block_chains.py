"""The index's keys of one lane's blocks, by the engine's names for them: what they were, however the lane forgot them.

Unlike an index it forgets nothing, so that a block's key can be told wherever its name appears in a trace; that costs
some hundred bytes for each distinct block.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence

from contract.events import BlockHash, BlockStored
from contract.hashing import block_key, extend_key
from router.intake.content import content_of, store_keys

__all__ = ["BlockChains"]

_Name = tuple[BlockHash, int]
"""An engine's name, and the ids of such a block: hybrid models give blocks of several widths one name."""


class BlockChains:
    """Fed stores in order. ``later`` has the keys of blocks that are stored out of order, from an earlier reading."""

    def __init__(self, later: BlockChains | None = None) -> None:
        self._keys: dict[_Name, int] = {}
        self._later: Mapping[_Name, int] = {} if later is None else later._keys

    def keys(self, event: BlockStored) -> Sequence[int]:
        """A key for each block of a store; one for the whole of a store that does not say which ids are whose."""
        content = content_of(event) if event.dense else None
        if content is None:
            return [block_key(event.token_ids, parent=0)]
        above, units = event.parent_block_hash, event.units_per_block
        parent = content.root if above is None else self._key_of((above, units))
        keys: array[int] = store_keys(event, parent=parent, extras=content.extras)
        self._keys.update(zip(((name, units) for name in event.block_hashes), keys, strict=True))
        return keys

    def _key_of(self, name: _Name) -> int:
        """That of a block that the trace never told of is its own: nobody's prompt has it."""
        key = self._keys.get(name)
        if key is None:
            key = self._later.get(name)
        return extend_key(0, name) if key is None else key
