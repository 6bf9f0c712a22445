"""All blocks of one lane: shared prefixes in the radix tree, private blocks of sequences, and the free rest.

Decides which blocks a sequence gets and what is evicted for it. Where the model has states, a held prefix is of use
only as far as a snapshot of them was kept: the hit is the longest prefix that blocks and states can both serve. Knows
nothing of requests, steps or memory; a block here is an id.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence

from contract.events import Event
from contract.geometry import Geometry
from engine.cache.allocator import BlockAllocator
from engine.cache.block_table import BlockTable
from engine.cache.node import Node
from engine.cache.radix_tree import RadixTree
from engine.cache.states import Snapshot, StateBook, StateRoom
from engine.request import Namespace
from engine.runner.base import StateMoves

__all__ = ["PrefixCache"]


class PrefixCache:
    """``total_blocks`` blocks of ``geometry.block_width`` tokens; each is free, private, or in the tree.

    ``states`` is the room for states of a model that has some; its interval is a multiple of the block width.
    """

    def __init__(self, *, geometry: Geometry, total_blocks: int, states: StateRoom | None = None) -> None:
        assert states is None or states.interval % geometry.block_width == 0, (
            f"snapshots every {states.interval} tokens are not at ends of blocks of {geometry.block_width}"
        )
        self._geometry = geometry
        self._tree = RadixTree(width=geometry.block_width)
        self._allocator = BlockAllocator(total_blocks)
        self._book = None if states is None else StateBook(states)
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

    @property
    def held_snapshots(self) -> int:
        """States kept behind cached prefixes."""
        return 0 if self._book is None else self._book.held_snapshots

    @property
    def evicted_snapshots(self) -> int:
        """States dropped to make room for others, since the start."""
        return 0 if self._book is None else self._book.evicted_snapshots

    def open(self, tokens: Sequence[int], namespace: Namespace) -> BlockTable:
        """A table that starts with the longest usable prefix of ``tokens``, locked until the table is closed.

        Blocks are locked, the snapshot that a sequence starts from is not: the first chunk must be planned in the same
        step as the table is opened, for in the next one another sequence may have the slot.
        """
        match = self._tree.match(tokens, namespace)
        node = match.node if self._book is None else self._book.nearest(match.node)
        self._tree.lock(node)
        return BlockTable(
            blocks=node.path_blocks() if node is not match.node else list(match.blocks),
            node=node,
            namespace=namespace,
            held_tokens=match.tokens,
            states=None if self._book is None else self._book.open(node, held_tokens=match.tokens),
        )

    def grow(self, table: BlockTable, *, length: int) -> bool:
        """Give the table private blocks until it covers ``length`` tokens, evicting for them; false: it cannot be."""
        missing = self._geometry.blocks_for(length) - len(table.blocks)
        if missing <= 0:
            return True
        if missing > self.available_blocks:
            return False
        shortage = missing - self._allocator.free_count
        if shortage > 0:
            self._drop(self._tree.evict(shortage * self._geometry.block_width))
        table.blocks += self._allocator.allocate(missing)
        return True

    def _drop(self, leaves: Sequence[Node]) -> None:
        for leaf in leaves:
            self._allocator.free(leaf.blocks)
            self.evicted_blocks += len(leaf.blocks)
        if self._book is not None:
            self._book.drop(leaves)

    def plan_states(self, table: BlockTable, *, start: int, stop: int, known: int) -> StateMoves | None:
        """What computing tokens ``[start, stop)`` of ``known`` ones does with the states; None: the model has none."""
        if self._book is None or table.states is None:
            return None
        return self._book.plan(table.states, start=start, stop=stop, known=known)

    def share(self, table: BlockTable, tokens: array[int], *, length: int) -> None:
        """Put the whole blocks of ``tokens[:length]``, which are computed now, into the tree, and snapshots with them.

        Where the tree has a block of the same tokens already, the table takes that one and its own is freed.
        """
        if self._book is not None and table.states is not None:
            self._keep(table, tokens, self._book.take_lasting(table.states, computed=length))
        self._share_blocks(table, tokens, length=length)

    def close(self, table: BlockTable, tokens: array[int], *, length: int) -> None:
        """The sequence is over: what is computed of it stays in the tree until evicted, everything else is free."""
        if self._book is not None and table.states is not None:
            self._keep(table, tokens, self._book.take_all(table.states, computed=length))
            self._book.close(table.states)
        self._share_blocks(table, tokens, length=length)
        self._allocator.free(table.blocks[table.shared :])
        self._tree.unlock(table.node)

    def _keep(self, table: BlockTable, tokens: array[int], snapshots: Iterable[Snapshot]) -> None:
        """Share as far as each snapshot at least, and give it to the node that ends there."""
        assert self._book is not None
        for snapshot in snapshots:
            self._share_blocks(table, tokens, length=snapshot.tokens)
            shared_tokens = table.shared * self._geometry.block_width
            node = self._tree.ancestor(table.node, tokens_before=shared_tokens - snapshot.tokens)
            self._book.keep(node, snapshot.slot)

    def _share_blocks(self, table: BlockTable, tokens: array[int], *, length: int) -> None:
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

    def clear(self) -> None:
        """Forget everything held; no table may be open."""
        self._allocator.free(self._tree.reset())
        if self._book is not None:
            self._book.clear()

    def take_events(self) -> list[Event]:
        """What happened to held blocks since the last call, coalesced."""
        return self._tree.take_events()

    def held_events(self) -> list[Event]:
        """Stores that describe all blocks held now, parents first."""
        return self._tree.held_events()

    def check_invariants(self, tables: Iterable[BlockTable]) -> None:
        """Assert that every block is free, in the tree, or private to exactly one of the open ``tables``.

        Likewise every state slot.
        """
        self._tree.check_invariants()
        opened = list(tables)
        private = []
        for table in opened:
            assert table.blocks[: table.shared] == table.node.path_blocks(), (
                "a table's shared blocks are not the tree's"
            )
            private += table.blocks[table.shared :]
        self._allocator.check_invariants(held=private + self._tree.blocks())
        if self._book is not None:
            width = self._geometry.block_width
            depths = {node: len(node.path_blocks()) * width for node in self._tree.nodes()}
            self._book.check_invariants(depths, [table.states for table in opened if table.states is not None])
