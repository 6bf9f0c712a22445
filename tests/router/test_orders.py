"""Orders are done in their order, and what is much is done in turns that others may come between."""

from __future__ import annotations

import asyncio

import pytest
from patience import in_time

from contract.events import BlockRemoved, BlockStored, EventBatch
from router.intake.index import BlockIndex
from router.intake.orders import Orders
from router.intake.stream import Apply, Clear

WIDTH = 6


def stores(*names: int) -> Apply:
    events = [
        BlockStored(block_hashes=[name], parent_block_hash=None, token_ids=[name] * WIDTH, block_size=WIDTH)
        for name in names
    ]
    return Apply(EventBatch(ts=0.0, events=events))


def removal(name: int) -> Apply:
    return Apply(EventBatch(ts=0.0, events=[BlockRemoved(block_hashes=[name])]))


class Carried:
    """Orders on a lane of their own, and what came of them."""

    def __init__(self) -> None:
        self.index = BlockIndex()
        self.handle = self.index.add_lane()
        self.ended = 0
        self.faults: list[Exception] = []
        self.orders = Orders(self.index, self.handle, on_done=self._done, on_fault=self.faults.append)

    def _done(self) -> None:
        self.ended += 1

    @property
    def names(self) -> set[object]:
        return {row.hash for row in self.index.blocks(self.handle)}


async def test_a_small_batch_is_applied_on_the_spot() -> None:
    lane = Carried()
    lane.orders.do(stores(1))
    lane.orders.do(removal(1))
    lane.orders.do(stores(2))
    assert (lane.names, lane.orders.busy, lane.ended) == ({2}, False, 0)
    lane.orders.do(Clear())
    assert lane.names == set()


async def test_what_is_ordered_behind_a_large_batch_waits_for_it() -> None:
    lane, count = Carried(), 1_000
    lane.orders.do(stores(1))
    lane.orders.do(stores(*range(2, count)))
    lane.orders.do(Clear())
    lane.orders.do(stores(5))
    lane.orders.do(stores(7))
    lane.orders.do(removal(5))
    assert (lane.names, lane.orders.busy) == ({1}, True)
    turns = 0
    while lane.orders.busy:
        await asyncio.sleep(0)
        turns += 1
    assert (lane.names, lane.ended, lane.faults) == ({7}, 1, [])
    assert turns > count // 100, "nobody else had a turn"
    lane.index.check_invariants()


async def test_much_that_is_little_each_is_deferred_too() -> None:
    lane = Carried()
    lane.orders.defer()
    lane.orders.defer()
    for name in range(1, 300):
        lane.orders.do(stores(name))
    assert lane.names == set()
    await in_time(lane.orders.free())
    assert (len(lane.names), lane.orders.busy, lane.ended) == (299, False, 1)


async def test_free_leaves_a_turn_to_others_even_where_nothing_waits() -> None:
    lane, turns = Carried(), 0

    async def other() -> None:
        nonlocal turns
        turns += 1

    task = asyncio.create_task(other())
    await lane.orders.free()
    assert turns == 1
    await task


async def test_an_order_that_cannot_be_done_is_told_and_nothing_is_done_behind_it() -> None:
    lane = Carried()
    lane.orders.defer()
    lane.orders.do(stores(1))
    lane.orders.do(stores(2))
    lane.index.remove_lane(lane.handle)
    for _ in range(3):
        await asyncio.sleep(0)
    assert (lane.ended, lane.orders.busy) == (0, True)
    with pytest.raises(KeyError):
        raise lane.faults[0]
    lane.orders.close()


async def test_closed_orders_are_done_no_more() -> None:
    lane = Carried()
    lane.orders.do(stores(*range(1, 500)))
    lane.orders.close()
    for _ in range(5):
        await asyncio.sleep(0)
    assert (lane.names, lane.ended) == (set(), 0)
