"""Which leaf of the radix tree goes next: the least recently used one that nobody has locked. Evicts nothing itself."""

from __future__ import annotations

from collections.abc import Iterable

from sortedcontainers import SortedDict

from engine.cache.node import Node

__all__ = ["EvictionOrder"]


class EvictionOrder:
    """Unlocked leaves, by last use. A node's ``last_used`` is written here only; no two uses have one number."""

    def __init__(self) -> None:
        self._uses = 0
        self._leaves = SortedDict()  # last_used -> leaf

    def __len__(self) -> int:
        return len(self._leaves)

    def use(self, node: Node) -> None:
        """``node`` is the most recently used one from here on; where it may go now, it goes last."""
        self.withdraw(node)
        self._uses += 1
        node.last_used = self._uses
        self.offer(node)

    def offer(self, node: Node) -> None:
        """``node`` may have become one that can go."""
        if _can_go(node):
            self._leaves[node.last_used] = node

    def withdraw(self, node: Node) -> None:
        """``node`` may not go, or not at the place where it stood."""
        self._leaves.pop(node.last_used, None)

    def take(self) -> Node:
        """The leaf that goes next; there is one."""
        leaf: Node = self._leaves.popitem(0)[1]
        return leaf

    def check_invariants(self, nodes: Iterable[Node]) -> None:
        """Assert that exactly those of a tree's ``nodes`` stand here that may go."""
        expected = {node.last_used: node for node in nodes if _can_go(node)}
        assert dict(self._leaves) == expected, "the eviction order misses a leaf or holds a node that is none"


def _can_go(node: Node) -> bool:
    return node.locks == 0 and not node.children and node.parent is not None
