"""The logical blocks of one sequence, in order, and who owns them."""

from __future__ import annotations

from engine.cache.node import Node
from engine.cache.states import SequenceStates
from engine.request import Namespace

__all__ = ["BlockTable"]


class BlockTable:
    """``blocks[:shared]`` belong to the radix tree, locked through ``node``; ``blocks[shared:]`` to the sequence alone.

    ``held_tokens`` is how many tokens the tree held when the table was opened; without a state to continue from, fewer
    are shared. ``states`` are the sequence's state slots, where the model has states.

    Made, changed and closed by the prefix cache only.
    """

    __slots__ = ("blocks", "held_tokens", "namespace", "node", "shared", "states")

    def __init__(
        self,
        *,
        blocks: list[int],
        node: Node,
        namespace: Namespace,
        held_tokens: int,
        states: SequenceStates | None = None,
    ) -> None:
        self.blocks = blocks
        self.shared = len(blocks)
        self.node = node
        self.namespace = namespace
        self.held_tokens = held_tokens
        self.states = states
