"""Tree, allocator, block tables and state slots together, against a model that keeps plain maps of prefixes."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from contract.events import AllBlocksCleared, BlockRemoved, BlockStored, Event
from contract.geometry import Geometry
from engine.cache.block_table import BlockTable
from engine.cache.prefix_cache import PrefixCache
from engine.cache.states import StateRoom
from engine.request import Namespace
from engine.runner.base import StateMoves

GEOMETRY = Geometry(page_size=3, dcp_size=2)
WIDTH = GEOMETRY.block_width
NAMESPACES = [Namespace(), Namespace(cache_salt="salt")]  # of names in events that tell them apart
RUNNING = 3

Prefix = tuple[Namespace, tuple[int, ...]]


class OpenSequence:
    """One open sequence as the model sees it; ``lasting`` and ``rolling`` are ends of snapshots it has taken."""

    def __init__(self, tokens: list[int], namespace: Namespace, table: BlockTable, *, branch: int) -> None:
        self.tokens = tokens
        self.namespace = namespace
        self.table = table
        self.prefill_end = len(tokens)
        self.computed = table.shared * WIDTH
        self.branch = branch
        self.lasting: list[int] = []
        self.rolling: int | None = None

    def prefix(self, length: int) -> Prefix:
        return self.namespace, tuple(self.tokens[:length])


class HeldPrefixes:
    """What a consumer of the events believes to be held: prefixes of whole blocks, by name."""

    def __init__(self) -> None:
        self.names: dict[object, Prefix] = {}
        self.prefixes: set[Prefix] = set()

    def fold(self, events: Iterable[Event]) -> None:
        for event in events:
            match event:
                case AllBlocksCleared():
                    self.names.clear()
                    self.prefixes.clear()
                case BlockStored():
                    self._store(event)
                case BlockRemoved():
                    for name in event.block_hashes:
                        self.prefixes.remove(self.names.pop(name))

    def _store(self, event: BlockStored) -> None:
        parent = event.parent_block_hash
        namespace, tokens = (Namespace(cache_salt=event.cache_salt), ()) if parent is None else self.names[parent]
        for position, name in enumerate(event.block_hashes, start=1):
            assert name not in self.names
            self.names[name] = (namespace, (*tokens, *event.token_ids[: position * WIDTH]))
            self.prefixes.add(self.names[name])

    def longest(self, tokens: Sequence[int], namespace: Namespace) -> int:
        length = 0
        while length + WIDTH <= len(tokens) and (namespace, tuple(tokens[: length + WIDTH])) in self.prefixes:
            length += WIDTH
        return length


class SnapshotModel:
    """Snapshots of the tree by prefix, in order of use, and those of open sequences as a mere count."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.owned: list[Prefix] = []  # the least recently used first
        self.private = 0

    def find(self) -> bool:
        """Room for a private one, if need be at the cost of the tree's least recently used one."""
        if self.private + len(self.owned) == self.slots:
            if not self.owned:
                return False
            self.owned.pop(0)
        self.private += 1
        return True

    def drop(self) -> None:
        """A private one is given up."""
        self.private -= 1

    def give(self, prefix: Prefix) -> None:
        """A private one becomes the tree's."""
        self.private -= 1
        self.use(prefix)

    def use(self, prefix: Prefix) -> None:
        if prefix in self.owned:
            self.owned.remove(prefix)
        self.owned.append(prefix)

    def keep_only(self, held: HeldPrefixes) -> None:
        self.owned = [prefix for prefix in self.owned if prefix in held.prefixes]


class CacheAgainstPrefixes(RuleBasedStateMachine):
    """The model knows which prefixes are held, and what every block and every state slot was last filled with."""

    @initialize(
        total_blocks=st.integers(4, 24), snapshots=st.none() | st.integers(1, 5), blocks_apart=st.integers(1, 2)
    )
    def start(self, total_blocks: int, snapshots: int | None, blocks_apart: int) -> None:
        self.interval = blocks_apart * WIDTH
        room = snapshots and StateRoom(running=RUNNING, snapshots=snapshots, interval=self.interval)
        self.cache = PrefixCache(geometry=GEOMETRY, total_blocks=total_blocks, states=room or None)
        self.snapshots = SnapshotModel(snapshots) if snapshots else None
        self.sequences: list[OpenSequence] = []
        self.held = HeldPrefixes()
        self.block_content: dict[int, Prefix] = {}
        self.slot_content: dict[int, Prefix] = {}
        self.listen()

    def listen(self) -> None:
        self.held.fold(self.cache.take_events())
        if self.snapshots is not None:
            self.snapshots.keep_only(self.held)

    @precondition(lambda self: len(self.sequences) < RUNNING)
    @rule(
        letters=st.lists(st.integers(0, 1), max_size=5),
        loose=st.integers(1, WIDTH),
        namespace=st.sampled_from(NAMESPACES),
        count=st.integers(1, 3 * WIDTH),
    )
    def open(self, letters: list[int], loose: int, namespace: Namespace, count: int) -> None:
        """The first chunk is planned at once, as it must be; it may be given up instead, for want of blocks."""
        tokens = [letter for letter in letters for _ in range(WIDTH)] + [9] * loose
        held = self.held.longest(tokens[:-1], namespace)
        table = self.cache.open(tokens[:-1], namespace)
        sequence = OpenSequence(tokens, namespace, table, branch=held // self.interval * self.interval)
        assert table.held_tokens == held
        assert sequence.computed == self.longest_hit(sequence, held)
        if self.snapshots is not None and sequence.computed:
            self.snapshots.use(sequence.prefix(sequence.computed))
        self.sequences.append(sequence)
        if not self.compute_chunk(sequence, count):
            self.end(sequence)

    def longest_hit(self, sequence: OpenSequence, held: int) -> int:
        if self.snapshots is None:
            return held
        ends = range(held, 0, -WIDTH)
        return next((end for end in ends if sequence.prefix(end) in self.snapshots.owned), 0)

    @precondition(lambda self: self.sequences)
    @rule(data=st.data(), count=st.integers(1, 3 * WIDTH), aborted=st.booleans(), token=st.integers(0, 1))
    def compute(self, data: st.DataObject, count: int, aborted: bool, token: int) -> None:
        """A chunk of what is known, or one token more; the sequence may be aborted while it is computed."""
        sequence = data.draw(st.sampled_from(self.sequences))
        if sequence.computed == len(sequence.tokens):
            sequence.tokens.append(token)
        if aborted and self.grow(sequence):
            self.plan(sequence, min(sequence.computed + count, len(sequence.tokens)))
            self.end(sequence)
        elif not aborted:
            self.compute_chunk(sequence, count)

    def compute_chunk(self, sequence: OpenSequence, count: int) -> bool:
        """Compute ``count`` known tokens at most; false: there are no blocks for them."""
        stop = min(sequence.computed + count, len(sequence.tokens))
        if not self.grow(sequence):
            return False
        self.plan(sequence, stop)
        is_prefill = sequence.computed < sequence.prefill_end
        sequence.computed = stop
        if is_prefill:
            self.share(sequence)
        return True

    def grow(self, sequence: OpenSequence) -> bool:
        missing = GEOMETRY.blocks_for(len(sequence.tokens)) - len(sequence.table.blocks)
        fits = missing <= self.cache.available_blocks
        assert self.cache.grow(sequence.table, length=len(sequence.tokens)) == fits
        self.listen()
        return fits

    def plan(self, sequence: OpenSequence, stop: int) -> None:
        start, known = sequence.computed, len(sequence.tokens)
        moves = self.cache.plan_states(sequence.table, start=start, stop=stop, known=known)
        for column in range(GEOMETRY.block_index(start), GEOMETRY.blocks_for(stop)):
            self.block_content[sequence.table.blocks[column]] = sequence.prefix(min((column + 1) * WIDTH, stop))
        assert (moves is None) == (self.snapshots is None)
        if moves is not None and self.snapshots is not None:
            self.check_moves(sequence, moves, start=start, stop=stop, snapshots=self.snapshots)

    def check_moves(
        self, sequence: OpenSequence, moves: StateMoves, *, start: int, stop: int, snapshots: SnapshotModel
    ) -> None:
        source = None if moves.source is None else self.slot_content[moves.source]
        assert source == (sequence.prefix(start) if start else None)
        taken = take_snapshots(sequence, snapshots, start=start, stop=stop, interval=self.interval)
        assert [start + count for count, _ in moves.saves] == [*taken, stop]
        for count, slot in moves.saves:
            self.slot_content[slot] = sequence.prefix(start + count)

    def share(self, sequence: OpenSequence) -> None:
        for end in sequence.lasting:
            assert self.snapshots is not None
            self.snapshots.give(sequence.prefix(end))
        sequence.lasting.clear()
        self.cache.share(sequence.table, array("Q", sequence.tokens), length=sequence.computed)
        self.listen()

    @precondition(lambda self: self.sequences)
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        self.end(data.draw(st.sampled_from(self.sequences)))

    def end(self, sequence: OpenSequence) -> None:
        self.sequences.remove(sequence)
        rolling = [] if sequence.rolling is None else [sequence.rolling]
        for end in [*sequence.lasting, *rolling]:
            assert self.snapshots is not None
            if end <= sequence.computed:
                self.snapshots.give(sequence.prefix(end))
            else:
                self.snapshots.drop()
        self.cache.close(sequence.table, array("Q", sequence.tokens), length=sequence.computed)
        self.listen()

    @precondition(lambda self: not self.sequences)
    @rule()
    def clear(self) -> None:
        self.cache.clear()
        self.listen()
        assert not self.held.names
        assert (self.cache.available_blocks, self.cache.held_snapshots) == (self.cache.total_blocks, 0)

    @invariant()
    def nothing_leaks(self) -> None:
        self.cache.check_invariants(sequence.table for sequence in self.sequences)
        if self.snapshots is not None:
            assert self.cache.held_snapshots == len(self.snapshots.owned)

    @invariant()
    def every_computed_block_holds_its_tokens(self) -> None:
        for sequence in self.sequences:
            for column in range(GEOMETRY.blocks_for(sequence.computed)):
                end = min((column + 1) * WIDTH, sequence.computed)
                assert self.block_content[sequence.table.blocks[column]] == sequence.prefix(end)

    @invariant()
    def what_is_in_use_is_held(self) -> None:
        for sequence in self.sequences:
            assert self.held.longest(sequence.tokens, sequence.namespace) >= sequence.table.shared * WIDTH


def take_snapshots(
    sequence: OpenSequence, snapshots: SnapshotModel, *, start: int, stop: int, interval: int
) -> list[int]:
    """Ends of the snapshots that computing ``[start, stop)`` takes, by the rules, as far as there is room."""
    lookup = (len(sequence.tokens) - 1) // interval * interval
    wanted = sorted({end for end in (sequence.branch, lookup) if start < end <= stop})
    sequence.lasting = [end for end in wanted if snapshots.find()]
    last = stop // interval * interval
    if last <= start:
        return sequence.lasting
    if sequence.rolling is not None:
        snapshots.drop()
        sequence.rolling = None
    if last in wanted or not snapshots.find():
        return sequence.lasting
    sequence.rolling = last
    return [*sequence.lasting, last]


TestCacheAgainstPrefixes = CacheAgainstPrefixes.TestCase
TestCacheAgainstPrefixes.settings = settings(max_examples=80, stateful_step_count=40)
