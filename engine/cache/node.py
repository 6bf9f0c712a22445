"""One node of the radix tree: a run of whole blocks that follow one parent. Knows nothing of eviction or events."""

from __future__ import annotations

from array import array

from engine.cache.page_hash import block_name, chain_seed
from engine.request import Namespace

__all__ = ["Edge", "Node"]

Edge = bytes | tuple[Namespace, bytes]
"""Finds a child: the bytes of its first block's tokens, and directly below the root its namespace too."""


class Node:
    """``tokens``, ``digests`` and ``blocks`` describe the same blocks: ``width`` tokens, one digest, one id each.

    ``locks`` counts the users of this run or of one below it. ``last_used`` orders nodes by use, later is higher.
    The root holds no blocks and has no parent.
    """

    __slots__ = ("blocks", "children", "digests", "last_used", "locks", "namespace", "parent", "tokens")

    def __init__(
        self,
        *,
        parent: Node | None,
        namespace: Namespace,
        tokens: array[int],
        digests: list[bytes],
        blocks: list[int],
        locks: int = 0,
    ) -> None:
        self.parent = parent
        self.namespace = namespace
        self.tokens = tokens
        self.digests = digests
        self.blocks = blocks
        self.locks = locks
        self.last_used = 0
        self.children: dict[Edge, Node] = {}

    def edge(self, first_block: array[int], namespace: Namespace) -> Edge:
        """Where a child that starts with these tokens hangs."""
        page = first_block.tobytes()
        return (namespace, page) if self.parent is None else page

    def last_digest(self, namespace: Namespace) -> bytes:
        """What the digest of a block behind this node chains from."""
        return chain_seed(namespace.cache_salt) if self.parent is None else self.digests[-1]

    @property
    def names(self) -> list[int]:
        """The blocks' names in events, in chain order."""
        return [block_name(digest) for digest in self.digests]

    @property
    def last_name(self) -> int | None:
        """The name of the last block: the parent of whatever follows. ``None`` at the root."""
        return None if self.parent is None else block_name(self.digests[-1])

    def path_blocks(self) -> list[int]:
        """The blocks from the root to the end of this node."""
        runs, node = [self.blocks], self
        while node.parent is not None:
            node = node.parent
            runs.append(node.blocks)
        return [block for run in reversed(runs) for block in run]

    def split(self, count: int, *, width: int) -> Node:
        """Move the first ``count`` blocks into a new parent between this node and its old parent, and return it.

        Whoever locked this node has locked the new one too.
        """
        assert self.parent is not None, "the root cannot be split"
        head = Node(
            parent=self.parent,
            namespace=self.namespace,
            tokens=self.tokens[: count * width],
            digests=self.digests[:count],
            blocks=self.blocks[:count],
            locks=self.locks,
        )
        self.parent.children[self.parent.edge(self.tokens[:width], self.namespace)] = head
        self.parent = head
        self.tokens = self.tokens[count * width :]
        self.digests = self.digests[count:]
        self.blocks = self.blocks[count:]
        head.children[head.edge(self.tokens[:width], self.namespace)] = self
        return head
