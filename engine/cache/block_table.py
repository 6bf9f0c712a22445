"""The logical blocks of one sequence, in order, and who owns them."""

from __future__ import annotations

from engine.cache.node import Node
from engine.request import Namespace

__all__ = ["BlockTable"]


class BlockTable:
    """``blocks[:shared]`` belong to the radix tree, locked through ``node``; ``blocks[shared:]`` to the sequence alone.

    Made, changed and closed by the prefix cache only.
    """

    __slots__ = ("blocks", "namespace", "node", "shared")

    def __init__(self, *, blocks: list[int], node: Node, namespace: Namespace) -> None:
        self.blocks = blocks
        self.shared = len(blocks)
        self.node = node
        self.namespace = namespace
