"""All blocks of one lane: shared prefixes in the radix tree, private blocks of sequences, and the free rest.

Decides which blocks a sequence gets and what is evicted for it. Knows nothing of requests, steps or memory; a block
here is an id.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence

from contract.events import Event
from contract.geometry import Geometry
from engine.cache.allocator import BlockAllocator
from engine.cache.block_table import BlockTable
from engine.cache.radix_tree import RadixTree
from engine.request import Namespace

__all__ = ["PrefixCache"]


class PrefixCache:
    """``total_blocks`` blocks of ``geometry.block_width`` tokens; each is free, private, or in the tree."""

    def __init__(self, *, geometry: Geometry, total_blocks: int) -> None:
        self._geometry = geometry
        self._tree = RadixTree(width=geometry.block_width)
        self._allocator = BlockAllocator(total_blocks)
        self.evicted_blocks = 0

    @property
    def total_blocks(self) -> int:
        """Blocks there are."""
        return self._allocator.total

    @property
    def available_blocks(self) -> int:
        """Blocks that a sequence could get now: the free ones, and those that can be evicted."""
        return self._allocator.free_count + self._tree.evictable_blocks

    @property
    def evictable_blocks(self) -> int:
        """Blocks kept for reuse only; no sequence uses them."""
        return self._tree.evictable_blocks

    def open(self, tokens: Sequence[int], namespace: Namespace) -> BlockTable:
        """A table that starts with the longest held prefix of ``tokens``, locked until the table is closed."""
        match = self._tree.match(tokens, namespace)
        self._tree.lock(match.node)
        return BlockTable(blocks=list(match.blocks), node=match.node, namespace=namespace)

    def grow(self, table: BlockTable, *, length: int) -> bool:
        """Give the table private blocks until it covers ``length`` tokens, evicting for them; false: it cannot be."""
        missing = self._geometry.blocks_for(length) - len(table.blocks)
        if missing <= 0:
            return True
        if missing > self.available_blocks:
            return False
        shortage = missing - self._allocator.free_count
        if shortage > 0:
            evicted = self._tree.evict(shortage * self._geometry.block_width)
            self._allocator.free(evicted)
            self.evicted_blocks += len(evicted)
        table.blocks += self._allocator.allocate(missing)
        return True

    def share(self, table: BlockTable, tokens: array[int], *, length: int) -> None:
        """Put the whole blocks of ``tokens[:length]``, which are computed now, into the tree.

        Where the tree has a block of the same tokens already, the table takes that one and its own is freed.
        """
        full = self._geometry.full_blocks(length)
        if full <= table.shared:
            return
        width = self._geometry.block_width
        fresh = tokens[table.shared * width : full * width]
        found, end = self._tree.extend(table.node, fresh, table.blocks[table.shared : full], table.namespace)
        known = slice(table.shared, table.shared + len(found.blocks))
        self._allocator.free(table.blocks[known])
        table.blocks[known] = found.blocks
        self._tree.lock(end, below=table.node)
        table.node, table.shared = end, full

    def close(self, table: BlockTable) -> None:
        """The sequence is over: its private blocks are free, its shared ones stay in the tree until evicted."""
        self._allocator.free(table.blocks[table.shared :])
        self._tree.unlock(table.node)

    def clear(self) -> None:
        """Forget everything held; no table may be open."""
        self._allocator.free(self._tree.reset())

    def take_events(self) -> list[Event]:
        """What happened to held blocks since the last call, coalesced."""
        return self._tree.take_events()

    def held_events(self) -> list[Event]:
        """Stores that describe all blocks held now, parents first."""
        return self._tree.held_events()

    def check_invariants(self, tables: Iterable[BlockTable]) -> None:
        """Assert that every block is free, in the tree, or private to exactly one of the open ``tables``."""
        self._tree.check_invariants()
        private = []
        for table in tables:
            assert table.blocks[: table.shared] == table.node.path_blocks(), (
                "a table's shared blocks are not the tree's"
            )
            private += table.blocks[table.shared :]
        self._allocator.check_invariants(held=private + self._tree.blocks())
