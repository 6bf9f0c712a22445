"""A prompt as the index looks it up: token ids of one namespace, hashed at whatever widths the lanes have.

Ids are converted once for all widths. Keys are hashed in growing chunks and only as far as somebody asks, because a
look-up stops where the last lane stops matching. Knows nothing of lanes, text or tokenizers.
"""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Iterator, Sequence
from typing import overload

from contract.hashing import Ids, block_keys, compact, namespace_key

__all__ = ["BlockKeys", "Prompt"]

_FIRST_CHUNK = 8
_GROWTH = 8
_LARGEST_CHUNK = 512


class BlockKeys:
    """Keys of a prompt's full blocks in order; each is hashed when it is first looked at, with some that follow."""

    def __init__(self, ids: Sequence[int], *, units_per_block: int, root: int) -> None:
        self._ids = ids
        self._step = units_per_block
        self._root = root
        self._length = len(ids) // units_per_block
        self._keys = array("Q")

    @classmethod
    def known(cls, keys: array[int]) -> BlockKeys:
        """Keys that somebody else has hashed, all of them."""
        found = cls((), units_per_block=1, root=0)
        found._length, found._keys = len(keys), keys
        return found

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, block: int) -> int: ...

    @overload
    def __getitem__(self, block: slice) -> array[int]: ...

    def __getitem__(self, block: int | slice) -> int | array[int]:
        if isinstance(block, slice):
            self._hash_up_to(min(block.stop, self._length))
            return self._keys[block]
        if not 0 <= block < self._length:
            raise IndexError(f"block {block} of {self._length}")
        self._hash_up_to(block + 1)
        return self._keys[block]

    def __iter__(self) -> Iterator[int]:
        for chunk in self.chunks():
            yield from chunk

    def chunks(self) -> Iterator[array[int]]:
        """All keys, some at a time; hashed when the chunk is asked for."""
        done = 0
        while done < self._length:
            if done == len(self._keys):
                self._grow()
            chunk = self._keys[done:]
            yield chunk
            done += len(chunk)

    @property
    def hashed(self) -> int:
        """Blocks hashed so far."""
        return len(self._keys)

    def _hash_up_to(self, blocks: int) -> None:
        while len(self._keys) < blocks:
            self._grow()

    def _grow(self) -> None:
        done = len(self._keys)
        count = min(self._length - done, max((_GROWTH - 1) * done, _FIRST_CHUNK), _LARGEST_CHUNK)
        chunk = self._ids[done * self._step : (done + count) * self._step]
        parent = self._keys[-1] if self._keys else self._root
        self._keys += block_keys(chunk, width=self._step, parent=parent)


class Prompt:
    """Token ids, and the namespace that an engine would cache them under.

    ``lora_name`` and ``cache_salt`` are the request's own; a prompt matches blocks of exactly the same two.

    Raises:
        TokenIdError: an id is negative or above 2**64-1.
    """

    def __init__(self, tokens: Sequence[int], *, lora_name: str | None = None, cache_salt: str | None = None) -> None:
        self._ids = compact(tokens)
        self.namespaced = lora_name is not None or cache_salt is not None
        self._root = namespace_key(lora_name=lora_name, cache_salt=cache_salt)
        self._pairs: Ids | None = None
        self._keys: dict[tuple[int, bool], BlockKeys] = {}

    def __len__(self) -> int:
        return len(self._ids)

    def head(self, count: int) -> Sequence[int]:
        """The first ids, at most ``count``."""
        return self._ids[:count]

    def plain(self) -> Prompt:
        """The same ids without adapter and salt."""
        return Prompt(self._ids)

    def keys(self, *, width: int, pairs: bool = False) -> BlockKeys:
        """Keys of the full blocks of ``width`` tokens; of ``width`` pairs of neighbours where ``pairs`` is set.

        N tokens make N-1 pairs: SGLang 0.5.23 pages its tree by pairs under EAGLE-like speculation.
        """
        found = self._keys.get((width, pairs))
        if found is None:
            ids, units = (self._as_pairs(), 2 * width) if pairs else (self._ids, width)
            found = self._keys[width, pairs] = BlockKeys(ids, units_per_block=units, root=self._root)
        return found

    def _as_pairs(self) -> Ids:
        if self._pairs is None:
            ids = self._ids
            self._pairs = compact([unit for pair in itertools.pairwise(ids) for unit in pair])
        return self._pairs
