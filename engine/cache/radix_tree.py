"""The prefix cache's index: which token prefixes are held, in which logical blocks, and what happened to them.

The tree is paged at the block width. Its nodes, splits, leaf-first eviction by last use and events are SGLang 0.5.23's
(``RadixCache``): for the same operations the encoded batches are the same bytes. It does no I/O, reads no clock, never
allocates or frees a block, and knows nothing of requests.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence

import msgspec

from contract.events import AllBlocksCleared, BlockRemoved, BlockStored, Event
from contract.hashing import TokenIdError
from engine.cache.coalesce import coalesce
from engine.cache.eviction_order import EvictionOrder
from engine.cache.node import Node
from engine.cache.page_hash import chain_digests
from engine.request import Namespace

__all__ = ["Match", "RadixTree"]

MEDIUM = "GPU"
SHARED = Namespace()


class Match(msgspec.Struct, frozen=True):
    """The longest held prefix: ``tokens`` long, in ``blocks``, ending at ``node`` (the root where nothing matched)."""

    tokens: int
    blocks: Sequence[int]
    node: Node


class RadixTree:
    """Prefixes of whole blocks of ``width`` tokens; tokens behind the last whole block are ignored everywhere.

    A namespace separates equal tokens. Its ``cache_salt`` also goes into the block names, its ``extra_key`` does not,
    so two tenants' equal prompts announce the same names twice.
    """

    def __init__(self, *, width: int) -> None:
        assert width > 0, f"a block holds at least 1 token, got {width}"
        self.width = width
        self._pending: list[Event] = []
        self._start_empty()

    def _start_empty(self) -> None:
        self._root = Node(parent=None, namespace=SHARED, tokens=array("Q"), digests=[], blocks=[])
        self._held = 0
        self._locked = 0
        self._order = EvictionOrder()
        self._pending.append(AllBlocksCleared())

    @property
    def held_blocks(self) -> int:
        """Blocks in the tree."""
        return self._held

    @property
    def evictable_blocks(self) -> int:
        """Blocks in the tree that nobody has locked; all of them can be evicted, leaves first."""
        return self._held - self._locked

    def match(self, tokens: Sequence[int], namespace: Namespace = SHARED) -> Match:
        """The longest held prefix. Counts as a use of its path, and splits the node in which it ends.

        Raises:
            TokenIdError: a token id outside [0, 2**64).
        """
        return self._descend(self._root, self._whole_blocks(tokens), namespace)

    def insert(self, tokens: Sequence[int], blocks: Sequence[int], namespace: Namespace = SHARED) -> int:
        """Hold ``tokens``, stored in ``blocks`` (one id a block), and return how many of them were held before.

        The tree keeps its own blocks for those; the given ids of that prefix stay the caller's.

        Raises:
            TokenIdError: a token id outside [0, 2**64).
        """
        return self.extend(self._root, tokens, blocks, namespace)[0].tokens

    def extend(
        self, node: Node, tokens: Sequence[int], blocks: Sequence[int], namespace: Namespace = SHARED
    ) -> tuple[Match, Node]:
        """Insert behind ``node``, which is the root or locked: what was held there before, and the new end.

        Costs the tokens given, however long the prefix before them is.
        """
        key = self._whole_blocks(tokens)
        assert len(blocks) * self.width >= len(key), f"{len(key)} tokens do not fit {len(blocks)} blocks"
        found = self._descend(node, key, namespace)
        if found.tokens == len(key):
            return found, found.node
        fresh = list(blocks[found.tokens // self.width : len(key) // self.width])
        return found, self._add_leaf(found.node, key[found.tokens :], fresh, namespace)

    def ancestor(self, node: Node, *, tokens_before: int) -> Node:
        """The node that ends whole blocks, ``tokens_before`` tokens, before ``node`` does; if need be by a split."""
        while node.parent is not None and tokens_before >= len(node.tokens):
            tokens_before -= len(node.tokens)
            node = node.parent
        if not tokens_before:
            return node
        return self._split(node, (len(node.tokens) - tokens_before) // self.width)

    def evict(self, num_tokens: int) -> list[Node]:
        """Drop least recently used unlocked leaves, whole, until at least ``num_tokens`` are dropped or none is left.

        Returns the dropped leaves in that order; their blocks are the caller's to free.
        """
        dropped: list[Node] = []
        while num_tokens > 0 and self._order:
            leaf = self._order.take()
            self._remove_leaf(leaf)
            num_tokens -= len(leaf.tokens)
            dropped.append(leaf)
        return dropped

    def lock(self, node: Node, *, below: Node | None = None) -> None:
        """Keep ``node`` and everything above it from eviction; with ``below``, only the nodes under that ancestor."""
        for each in _upwards(node, below):
            if each.locks == 0:
                self._locked += len(each.blocks)
                self._order.withdraw(each)
            each.locks += 1

    def unlock(self, node: Node) -> None:
        """Undo one ``lock`` of ``node`` and everything above it; they were in use until now."""
        for each in _upwards(node, None):
            assert each.locks > 0, "a node is unlocked that nobody locked"
            each.locks -= 1
            if each.locks == 0:
                self._locked -= len(each.blocks)
            self._order.use(each)

    def reset(self) -> list[int]:
        """Drop everything; nothing may be locked. Returns the dropped block ids, which are the caller's to free."""
        assert self._locked == 0, f"the tree is reset while {self._locked} of its blocks are in use"
        dropped = self.blocks()
        self._start_empty()
        return dropped

    def blocks(self) -> list[int]:
        """The ids of all held blocks."""
        return [block for node in self.nodes() for block in node.blocks]

    def nodes(self) -> Iterator[Node]:
        """All nodes but the root, every parent before its children, a first child right behind its parent."""
        stack = list(reversed(self._root.children.values()))
        while stack:
            node = stack.pop()
            yield node
            stack.extend(reversed(node.children.values()))

    def take_events(self) -> list[Event]:
        """What happened since the last call, coalesced; one batch."""
        events, self._pending = self._pending, []
        return coalesce(events)

    def held_events(self) -> list[Event]:
        """Stores that describe everything held now, parents first, coalesced; ``take_events`` is not affected."""
        return coalesce(_stored(node, width=self.width) for node in self.nodes())

    def _whole_blocks(self, tokens: Sequence[int]) -> array[int]:
        end = len(tokens) - len(tokens) % self.width
        try:
            return array("Q", tokens[:end])
        except OverflowError:
            bad = next(token for token in tokens if not 0 <= token < 2**64)
            raise TokenIdError(f"token id {bad} is outside [0, 2**64)") from None

    def _descend(self, node: Node, key: array[int], namespace: Namespace) -> Match:
        position, blocks = 0, []
        while position < len(key):
            child = node.children.get(node.edge(key[position : position + self.width], namespace))
            if child is None:
                break
            self._order.use(child)
            shared = self._shared_blocks(child, key, position)
            node = child if shared == len(child.blocks) else self._split(child, shared)
            blocks += node.blocks
            position += shared * self.width
        return Match(position, blocks, node)

    def _shared_blocks(self, node: Node, key: array[int], position: int) -> int:
        """Blocks of ``node`` that ``key`` goes through from ``position`` on; the first one is known to be shared."""
        if key[position : position + len(node.tokens)] == node.tokens:
            return len(node.blocks)
        low, high = 1, min(len(node.blocks), (len(key) - position) // self.width)
        while low < high:  # the longest shared run is in [low, high]
            middle = (low + high + 1) // 2
            start, end = low * self.width, middle * self.width
            if node.tokens[start:end] == key[position + start : position + end]:
                low = middle
            else:
                high = middle - 1
        return low

    def _split(self, node: Node, count: int) -> Node:
        head = node.split(count, width=self.width)
        self._order.use(head)
        return head

    def _add_leaf(self, parent: Node, tokens: array[int], blocks: list[int], namespace: Namespace) -> Node:
        digests = chain_digests(tokens, width=self.width, prior=parent.last_digest(namespace))
        self._order.withdraw(parent)
        leaf = Node(parent=parent, namespace=namespace, tokens=tokens, digests=digests, blocks=blocks)
        parent.children[parent.edge(tokens[: self.width], namespace)] = leaf
        self._held += len(blocks)
        self._order.use(leaf)
        self._pending.append(_stored(leaf, width=self.width))
        return leaf

    def _remove_leaf(self, leaf: Node) -> None:
        parent = leaf.parent
        assert parent is not None, "the root cannot be evicted"
        del parent.children[parent.edge(leaf.tokens[: self.width], leaf.namespace)]
        self._held -= len(leaf.blocks)
        self._order.offer(parent)
        self._pending.append(BlockRemoved(block_hashes=leaf.names, medium=MEDIUM))

    def check_invariants(self) -> None:
        """Assert that the structure, the counts, the digests and the eviction order agree with each other."""
        nodes = list(self.nodes())
        for node in nodes:
            self._check_node(node)
        blocks = self.blocks()
        assert len(blocks) == len(set(blocks)) == self._held, (
            "a block is held twice, or the count of held blocks is off"
        )
        assert sum(len(node.blocks) for node in nodes if node.locks) == self._locked, (
            "the count of locked blocks is off"
        )
        self._order.check_invariants(nodes)

    def _check_node(self, node: Node) -> None:
        parent = node.parent
        assert parent is not None, "a node lost its parent"
        assert parent.children[parent.edge(node.tokens[: self.width], node.namespace)] is node, "a node is misplaced"
        assert parent.parent is None or parent.namespace == node.namespace, "a namespace changes along a path"
        assert len(node.blocks) == len(node.digests) > 0, "a node without blocks, or with too few digests"
        assert len(node.tokens) == len(node.blocks) * self.width, "a node's tokens do not fill its blocks"
        prior = parent.last_digest(node.namespace)
        assert node.digests == chain_digests(node.tokens, width=self.width, prior=prior), "a broken hash chain"
        assert node.locks >= sum(child.locks for child in node.children.values()), "a child is locked, its parent not"


def _stored(node: Node, *, width: int) -> BlockStored:
    assert node.parent is not None, "the root stores nothing"
    return BlockStored(
        block_hashes=node.names,
        parent_block_hash=node.parent.last_name,
        token_ids=node.tokens.tolist(),
        block_size=width,
        medium=MEDIUM,
        cache_salt=node.namespace.cache_salt,
    )


def _upwards(node: Node, below: Node | None) -> Iterator[Node]:
    """``node``, its parent and so on, without the root and without ``below``."""
    while node.parent is not None and node is not below:
        yield node
        node = node.parent
