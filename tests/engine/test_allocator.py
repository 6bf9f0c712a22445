"""Block ids are handed out once, come back once, and none is lost."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engine.cache.allocator import BlockAllocator


def test_ids_are_unique_and_cover_the_whole_range() -> None:
    allocator = BlockAllocator(5)
    assert sorted(allocator.allocate(2) + allocator.allocate(3)) == [0, 1, 2, 3, 4]
    assert (allocator.free_count, allocator.held_count) == (0, 5)


def test_more_than_is_free_is_never_handed_out() -> None:
    allocator = BlockAllocator(3)
    allocator.allocate(2)
    with pytest.raises(AssertionError, match="2 blocks asked for, 1 of 3 are free"):
        allocator.allocate(2)
    allocator.check_invariants()


def test_a_second_free_of_one_block_is_caught() -> None:
    allocator = BlockAllocator(3)
    block, _ = allocator.allocate(2)
    allocator.free([block])
    with pytest.raises(AssertionError, match=f"block {block} is freed twice"):
        allocator.free([block])


def test_a_leaked_block_is_named() -> None:
    allocator = BlockAllocator(4)
    kept, lost = allocator.allocate(2)
    with pytest.raises(AssertionError, match=rf"leaked \[{lost}\]"):
        allocator.check_invariants(held=[kept])


class Allocations(RuleBasedStateMachine):
    @initialize(total=st.integers(1, 12))
    def start(self, total: int) -> None:
        self.allocator = BlockAllocator(total)
        self.out: list[int] = []

    @rule(data=st.data())
    def allocate(self, data: st.DataObject) -> None:
        self.out += self.allocator.allocate(data.draw(st.integers(0, self.allocator.free_count)))

    @precondition(lambda self: self.out)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(self.out))
        self.out.remove(block)
        self.allocator.free([block])

    @invariant()
    def everything_adds_up(self) -> None:
        self.allocator.check_invariants(held=self.out)
        assert self.allocator.held_count == len(self.out)


TestAllocations = Allocations.TestCase
