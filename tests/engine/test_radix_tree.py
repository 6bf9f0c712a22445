"""The tree finds what was inserted, evicts least recently used leaves, and its events tell the whole truth."""

from __future__ import annotations

import hashlib
import struct
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import count

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from contract.events import AllBlocksCleared, BlockRemoved, BlockStored, Event
from contract.geometry import Geometry
from contract.hashing import TokenIdError
from engine.cache.node import Node
from engine.cache.radix_tree import RadixTree
from engine.request import Namespace

WIDTH = Geometry(page_size=3, dcp_size=2).block_width
A, B, C, D = ([letter] * WIDTH for letter in (1, 2, 3, 4))
NAMESPACES = [Namespace(), Namespace("tenant"), Namespace(cache_salt="salt"), Namespace("tenant", "salt")]


class Held:
    """What a consumer of the events believes to be held: how many copies of each name."""

    def __init__(self) -> None:
        self.copies: Counter[object] = Counter()

    def fold(self, events: Iterable[Event]) -> None:
        for event in events:
            match event:
                case AllBlocksCleared():
                    self.copies.clear()
                case BlockStored():
                    parent = event.parent_block_hash
                    assert parent is None or self.copies[parent] > 0, "a store behind a block that is not held"
                    assert event.dense
                    self.copies.update(event.block_hashes)
                case BlockRemoved():
                    self.copies.subtract(event.block_hashes)
                    assert min(self.copies.values()) >= 0, "a removal of a block that is not held"
        self.copies = +self.copies


def insert(tree: RadixTree, *blocks: list[int], first_id: int = 0) -> int:
    tokens = [token for block in blocks for token in block]
    return tree.insert(tokens, range(first_id, first_id + len(blocks)))


def matched(tree: RadixTree, *blocks: list[int]) -> int:
    return tree.match([token for block in blocks for token in block]).tokens


def evict(tree: RadixTree, num_tokens: int) -> list[int]:
    return [block for leaf in tree.evict(num_tokens) for block in leaf.blocks]


@pytest.fixture
def tree() -> RadixTree:
    return RadixTree(width=WIDTH)


def test_a_new_tree_says_that_it_is_empty_and_only_once(tree: RadixTree) -> None:
    assert tree.take_events() == [AllBlocksCleared()]
    assert tree.take_events() == []


def test_tokens_behind_the_last_whole_block_are_ignored(tree: RadixTree) -> None:
    assert tree.insert(A + B[:-1], [7]) == 0
    match = tree.match(A + B)
    assert (match.tokens, list(match.blocks)) == (WIDTH, [7])
    assert matched(tree, A[:-1]) == 0


def test_inserting_again_keeps_the_first_blocks_and_says_nothing(tree: RadixTree) -> None:
    insert(tree, A, B, first_id=0)
    tree.take_events()
    assert insert(tree, A, B, C, first_id=10) == 2 * WIDTH
    assert list(tree.match(A + B + C).blocks) == [0, 1, 12]
    (stored,) = tree.take_events()
    assert stored.token_ids == C


def test_prefixes_part_inside_a_node_at_every_depth(tree: RadixTree) -> None:
    insert(tree, A, B, C, D, first_id=0)
    for depth, path in enumerate([[A, B, C], [A, B], [A]], start=1):
        assert matched(tree, *path, [9] * WIDTH) == len(path) * WIDTH
        tree.check_invariants()
        assert insert(tree, *path, [9] * WIDTH, first_id=10 * depth) == len(path) * WIDTH
        tree.check_invariants()
    assert list(tree.match(A + B + C + D).blocks) == [0, 1, 2, 3]


def test_a_split_moves_no_name_and_no_block(tree: RadixTree) -> None:
    insert(tree, A, B, C)
    before = Counter(name for event in tree.held_events() for name in event.block_hashes)
    tree.take_events()
    assert matched(tree, A) == WIDTH
    assert tree.take_events() == []
    assert Counter(name for event in tree.held_events() for name in event.block_hashes) == before


def test_the_least_recently_used_leaf_goes_first_and_whole(tree: RadixTree) -> None:
    insert(tree, A, B, first_id=0)
    insert(tree, C, first_id=10)
    insert(tree, D, first_id=20)
    matched(tree, C)
    assert evict(tree, 1) == [0, 1]
    assert evict(tree, 1) == [20]
    assert evict(tree, 1) == [10]
    assert evict(tree, 1) == []
    tree.check_invariants()


def test_a_parent_goes_after_its_children_only(tree: RadixTree) -> None:
    insert(tree, A, B, first_id=0)
    insert(tree, A, C, first_id=10)
    assert evict(tree, 3 * WIDTH) == [1, 11, 0]


def test_locked_paths_are_not_evicted_until_unlocked(tree: RadixTree) -> None:
    insert(tree, A, B, first_id=0)
    node = tree.match(A).node
    tree.lock(node)
    assert tree.evictable_blocks == 1
    assert evict(tree, 100) == [1]
    tree.unlock(node)
    assert evict(tree, 100) == [0]


def test_a_lock_survives_the_split_of_its_node(tree: RadixTree) -> None:
    insert(tree, A, B, first_id=0)
    node = tree.match(A + B).node
    tree.lock(node)
    matched(tree, A)
    assert evict(tree, 100) == []
    tree.unlock(node)
    assert sorted(evict(tree, 100)) == [0, 1]
    tree.check_invariants()


def test_what_was_locked_counts_as_used_until_unlocked(tree: RadixTree) -> None:
    insert(tree, A, first_id=0)
    node = tree.match(A).node
    tree.lock(node)
    insert(tree, B, first_id=1)
    tree.unlock(node)
    assert evict(tree, 1) == [1]


def test_extending_behind_a_locked_node_is_inserting_the_whole(tree: RadixTree) -> None:
    insert(tree, A, B, first_id=0)
    node = tree.match(A).node
    tree.lock(node)
    found, end = tree.extend(node, B + C, [10, 11])
    assert (found.tokens, list(found.blocks)) == (WIDTH, [1])
    assert list(tree.match(A + B + C).blocks) == [0, 1, 11]
    tree.lock(end, below=node)
    assert tree.evictable_blocks == 0
    tree.unlock(end)
    assert tree.evictable_blocks == 3
    tree.check_invariants()


def test_a_namespace_sees_its_own_blocks_only(tree: RadixTree) -> None:
    for first, namespace in enumerate(NAMESPACES):
        assert tree.insert(A, [first], namespace) == 0
    for first, namespace in enumerate(NAMESPACES):
        assert list(tree.match(A, namespace).blocks) == [first]
    assert tree.match(A, Namespace("other")).tokens == 0


def test_only_the_salt_changes_names_and_it_stands_on_the_event(tree: RadixTree) -> None:
    tree.take_events()
    for block, namespace in enumerate(NAMESPACES):
        tree.insert(A, [block], namespace)
    plain, tenant, salted, both = tree.take_events()
    assert plain.block_hashes == tenant.block_hashes != salted.block_hashes == both.block_hashes
    assert [event.cache_salt for event in (plain, tenant, salted, both)] == [None, None, "salt", "salt"]


def test_reset_returns_every_block_and_says_so(tree: RadixTree) -> None:
    insert(tree, A, B, first_id=0)
    insert(tree, C, first_id=5)
    tree.take_events()
    assert sorted(tree.reset()) == [0, 1, 5]
    assert tree.take_events() == [AllBlocksCleared()]
    assert matched(tree, A) == 0


def test_a_tree_in_use_is_not_reset(tree: RadixTree) -> None:
    insert(tree, A, B)
    tree.lock(tree.match(A).node)
    with pytest.raises(AssertionError, match="1 of its blocks are in use"):
        tree.reset()


@pytest.mark.parametrize("bad", [-1, 2**64])
def test_a_bad_token_id_is_refused_before_anything_changes(tree: RadixTree, bad: int) -> None:
    with pytest.raises(TokenIdError, match=str(bad)):
        tree.insert([bad] * WIDTH, [0])
    tree.check_invariants()
    assert tree.held_blocks == 0


def test_long_prefixes_part_at_the_right_block(tree: RadixTree) -> None:
    tokens = list(range(40 * WIDTH))
    tree.insert(tokens, range(40))
    for position in (0, WIDTH - 1, WIDTH, 17 * WIDTH + 2, 39 * WIDTH, 40 * WIDTH - 1):
        other = [*tokens[:position], 10**6, *tokens[position + 1 :]]
        assert tree.match(other).tokens == position // WIDTH * WIDTH
        tree.check_invariants()


def chain_names(tokens: Sequence[int], salt: str | None) -> int:
    """The name of the last block of ``tokens``, by independent code."""
    prior = b"" if salt is None else hashlib.sha256(b"sglang-cache-salt-v1\0" + salt.encode()).digest()
    for start in range(0, len(tokens), WIDTH):
        prior = hashlib.sha256(prior + struct.pack(f"<{WIDTH}I", *tokens[start : start + WIDTH])).digest()
    return int.from_bytes(prior[:8], "big")


Prefix = tuple[Namespace, tuple[int, ...]]
LETTERS = st.lists(st.integers(0, 2), max_size=6)
LOOSE = st.integers(0, WIDTH - 1)


class TreeAgainstPrefixes(RuleBasedStateMachine):
    """The model is a map from each held prefix of whole blocks to the block that stores its last one."""

    @initialize()
    def start(self) -> None:
        self.tree = RadixTree(width=WIDTH)
        self.model: dict[Prefix, int] = {}
        self.locks: list[tuple[Node, Prefix]] = []
        self.consumer = Held()
        self.ids = count()

    def spell(self, letters: list[int], loose: int) -> list[int]:
        return [letter for letter in letters for _ in range(WIDTH)] + [9] * loose

    def prefixes(self, tokens: Sequence[int], namespace: Namespace) -> list[Prefix]:
        ends = range(WIDTH, len(tokens) + 1, WIDTH)
        return [(namespace, tuple(tokens[:end])) for end in ends]

    def held_of(self, tokens: Sequence[int], namespace: Namespace) -> list[Prefix]:
        held = []
        for prefix in self.prefixes(tokens, namespace):
            if prefix not in self.model:
                break
            held.append(prefix)
        return held

    @rule(letters=LETTERS, loose=LOOSE, namespace=st.sampled_from(NAMESPACES))
    def insert(self, letters: list[int], loose: int, namespace: Namespace) -> None:
        tokens = self.spell(letters, loose)
        held = self.held_of(tokens, namespace)
        fresh = [next(self.ids) for _ in letters]
        assert self.tree.insert(tokens, fresh, namespace) == len(held) * WIDTH
        for prefix, block in zip(self.prefixes(tokens, namespace), fresh, strict=True):
            self.model.setdefault(prefix, block)

    @rule(letters=LETTERS, loose=LOOSE, namespace=st.sampled_from(NAMESPACES))
    def match(self, letters: list[int], loose: int, namespace: Namespace) -> None:
        tokens = self.spell(letters, loose)
        held = self.held_of(tokens, namespace)
        found = self.tree.match(tokens, namespace)
        assert found.tokens == len(held) * WIDTH
        assert list(found.blocks) == [self.model[prefix] for prefix in held]

    @rule(letters=LETTERS, namespace=st.sampled_from(NAMESPACES))
    def lock(self, letters: list[int], namespace: Namespace) -> None:
        tokens = self.spell(letters, 0)
        found = self.tree.match(tokens, namespace)
        self.tree.lock(found.node)
        self.locks.append((found.node, (namespace, tuple(tokens[: found.tokens]))))

    @precondition(lambda self: self.locks)
    @rule(data=st.data(), letters=LETTERS)
    def extend_a_locked_prefix(self, data: st.DataObject, letters: list[int]) -> None:
        which = data.draw(st.integers(0, len(self.locks) - 1))
        node, (namespace, before) = self.locks[which]
        more = self.spell(letters, 0)
        fresh = [next(self.ids) for _ in letters]
        held = self.held_of([*before, *more], namespace)
        found, end = self.tree.extend(node, more, fresh, namespace)
        assert found.tokens == len(held) * WIDTH - len(before)
        prefixes = self.prefixes([*before, *more], namespace)[len(before) // WIDTH :]
        for prefix, block in zip(prefixes, fresh, strict=True):
            self.model.setdefault(prefix, block)
        self.tree.lock(end, below=node)
        self.locks[which] = (end, (namespace, (*before, *more)))

    @precondition(lambda self: self.locks)
    @rule(data=st.data())
    def unlock(self, data: st.DataObject) -> None:
        node, _ = self.locks.pop(data.draw(st.integers(0, len(self.locks) - 1)))
        self.tree.unlock(node)

    @rule(num_tokens=st.integers(0, 8 * WIDTH))
    def evict(self, num_tokens: int) -> None:
        dropped = evict(self.tree, num_tokens)
        prefix_of = {block: prefix for prefix, block in self.model.items()}
        for block in dropped:
            del self.model[prefix_of[block]]
        assert len(dropped) * WIDTH >= num_tokens or self.tree.evictable_blocks == 0
        for namespace, tokens in self.model:
            parent = tokens[:-WIDTH]
            assert not parent or (namespace, parent) in self.model, "a parent was dropped before its child"
        for _, (namespace, tokens) in self.locks:
            assert len(self.held_of(tokens, namespace)) * WIDTH == len(tokens), "a locked prefix was dropped"

    @precondition(lambda self: not self.locks)
    @rule()
    def reset(self) -> None:
        assert sorted(self.tree.reset()) == sorted(self.model.values())
        self.model.clear()

    @invariant()
    def events_tell_what_is_held(self) -> None:
        truth = Counter(chain_names(tokens, namespace.cache_salt) for namespace, tokens in self.model)
        self.consumer.fold(self.tree.take_events())
        assert self.consumer.copies == truth
        snapshot = Held()
        snapshot.fold(self.tree.held_events())
        assert snapshot.copies == truth

    @invariant()
    def the_tree_is_sound(self) -> None:
        self.tree.check_invariants()
        assert self.tree.held_blocks == len(self.model)
        locked = {prefix for _, (namespace, tokens) in self.locks for prefix in self.prefixes(tokens, namespace)}
        assert self.tree.evictable_blocks == len(self.model) - len(locked)


TestTreeAgainstPrefixes = TreeAgainstPrefixes.TestCase
TestTreeAgainstPrefixes.settings = settings(max_examples=60, stateful_step_count=40)
