"""Which slot of the state pools holds what: the state of each running sequence, and snapshots that tree nodes own.

A hybrid's linear layers keep one state a sequence, and a state says nothing of shorter prefixes. So copies of it, the
snapshots, are kept behind some blocks; only from a snapshot can a cached prefix be continued. Snapshots are bounded:
when a slot is wanted and none is free, the least recently used snapshot goes. Knows nothing of memory; a slot is an id,
the same on every rank, and stands for the states of all layers.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping

import msgspec

from engine.cache.allocator import BlockAllocator
from engine.cache.node import Node
from engine.runner.base import StateMoves

__all__ = ["SequenceStates", "Snapshot", "StateBook", "StateRoom"]


class StateRoom(msgspec.Struct, frozen=True, kw_only=True):
    """``running`` slots for sequences, ids from 0 on, and ``snapshots`` more behind them.

    Snapshots are taken at multiples of ``interval`` tokens only, itself a multiple of the block width.
    """

    running: int
    snapshots: int
    interval: int

    @property
    def slots(self) -> int:
        """All of them."""
        return self.running + self.snapshots

    def boundary(self, tokens: int) -> int:
        """The last place in ``tokens`` where a snapshot may be."""
        return tokens - tokens % self.interval


class Snapshot(msgspec.Struct, frozen=True):
    """The states behind a sequence's first ``tokens`` tokens are in ``slot``, or will be when its step is computed."""

    tokens: int
    slot: int


class SequenceStates:
    """One running sequence's slots. Made, changed and closed by the book only.

    ``source`` is where the next chunk starts from; None is the state before the first token. ``branch`` is where other
    sequences turned off. ``lasting`` are snapshots that go to the tree as soon as they are computed; ``rolling`` is the
    latest of those that follow the sequence, and goes there only when the sequence ends.
    """

    __slots__ = ("branch", "lasting", "rolling", "slot", "source")

    def __init__(self, *, slot: int, source: int | None, branch: int) -> None:
        self.slot = slot
        self.source = source
        self.branch = branch
        self.lasting: list[Snapshot] = []
        self.rolling: Snapshot | None = None

    @property
    def taken(self) -> list[Snapshot]:
        """All snapshots that no node owns yet, the shortest first."""
        return self.lasting if self.rolling is None else [*self.lasting, self.rolling]


class StateBook:
    """Every slot is free, a running sequence's, taken for it, or a node's."""

    def __init__(self, room: StateRoom) -> None:
        self.room = room
        self.evicted_snapshots = 0
        self._running = BlockAllocator(room.running)
        self._snapshots = BlockAllocator(room.snapshots)
        self._owned: OrderedDict[Node, int] = OrderedDict()  # the least recently used one first

    @property
    def held_snapshots(self) -> int:
        """Snapshots that nodes own."""
        return len(self._owned)

    def nearest(self, node: Node) -> Node:
        """The end of the longest prefix of ``node``'s that can be continued: a node with a snapshot, or the root."""
        while node.parent is not None and node not in self._owned:
            node = node.parent
        return node

    def open(self, node: Node, *, held_tokens: int) -> SequenceStates:
        """Slots for a sequence that starts behind ``node``, and of which the tree holds the first ``held_tokens``."""
        if node in self._owned:
            self._owned.move_to_end(node)
        (slot,) = self._running.allocate(1)
        return SequenceStates(slot=slot, source=self._owned.get(node), branch=self.room.boundary(held_tokens))

    def plan(self, states: SequenceStates, *, start: int, stop: int, known: int) -> StateMoves:
        """What the next chunk, tokens ``[start, stop)`` of ``known`` ones, does with the sequence's states.

        Lasting snapshots are taken where others turned off before, for they may again, and where the same prompt will
        be looked up, whose last token is never taken from the cache. The rolling one is at the last boundary.
        """
        boundary = self.room.boundary
        lasting = {at for at in (states.branch, boundary(known - 1)) if start < at <= stop}
        for at in sorted(lasting):
            if (slot := self._find_slot()) is not None:
                states.lasting.append(Snapshot(at, slot))
        if boundary(stop) > start:
            self._roll(states, None if boundary(stop) in lasting else boundary(stop))
        moves = StateMoves(
            source=states.source,
            saves=(
                *((snapshot.tokens - start, snapshot.slot) for snapshot in states.taken if snapshot.tokens > start),
                (stop - start, states.slot),
            ),
        )
        states.source = states.slot
        return moves

    def _roll(self, states: SequenceStates, tokens: int | None) -> None:
        """Put the rolling snapshot behind ``tokens``; None: a lasting one takes its place."""
        if states.rolling is not None:
            self._free(states.rolling.slot)
            states.rolling = None
        if tokens is not None and (slot := self._find_slot()) is not None:
            states.rolling = Snapshot(tokens, slot)

    def take_lasting(self, states: SequenceStates, *, computed: int) -> list[Snapshot]:
        """The lasting snapshots within ``computed`` tokens, each of them to be kept by a node now (see ``keep``)."""
        ready = [snapshot for snapshot in states.lasting if snapshot.tokens <= computed]
        states.lasting = states.lasting[len(ready) :]
        return ready

    def take_all(self, states: SequenceStates, *, computed: int) -> list[Snapshot]:
        """Likewise the rolling one too: the sequence ends."""
        ready = self.take_lasting(states, computed=computed)
        if states.rolling is not None and states.rolling.tokens <= computed:
            ready.append(states.rolling)
            states.rolling = None
        return ready

    def keep(self, node: Node, slot: int) -> None:
        """``slot`` holds the states behind ``node``, which owns it now; where it has the same already, it is freed."""
        if node in self._owned:
            self._free(slot)
        else:
            self._owned[node] = slot
        self._owned.move_to_end(node)

    def close(self, states: SequenceStates) -> None:
        """The sequence is over, or will start again from the tree."""
        for snapshot in states.taken:
            self._free(snapshot.slot)
        self._running.free([states.slot])

    def drop(self, nodes: Iterable[Node]) -> None:
        """These nodes are no more."""
        for node in nodes:
            if (slot := self._owned.pop(node, None)) is not None:
                self._free(slot)

    def clear(self) -> None:
        """No node is left."""
        self.drop(list(self._owned))

    def _find_slot(self) -> int | None:
        """A free snapshot slot, if need be the least recently used node's; None: running sequences have them all."""
        if not self._snapshots.free_count:
            if not self._owned:
                return None
            self._free(self._owned.popitem(last=False)[1])
            self.evicted_snapshots += 1
        (found,) = self._snapshots.allocate(1)
        return self.room.running + found

    def _free(self, slot: int) -> None:
        self._snapshots.free([slot - self.room.running])

    def check_invariants(self, depths: Mapping[Node, int], sequences: Iterable[SequenceStates]) -> None:
        """Assert that each slot has one holder: a node of the tree, by its end's ``depths``, or an open sequence."""
        for node in self._owned:
            assert node in depths, "a snapshot outlives its node"
            assert depths[node] == self.room.boundary(depths[node]), f"a snapshot stands behind {depths[node]} tokens"
        opened = list(sequences)
        self._running.check_invariants(held=[states.slot for states in opened])
        snapshots = [*self._owned.values(), *(snapshot.slot for states in opened for snapshot in states.taken)]
        self._snapshots.check_invariants(held=[slot - self.room.running for slot in snapshots])
