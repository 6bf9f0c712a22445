"""Layouts of ranks, and ranks as threads: collectives, failures, endings."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch

from engine.model.config import TINY
from engine.parallel.group import Group, all_gather_along
from engine.parallel.layout import HeadShard, Layout, LayoutError
from engine.parallel.threads import ThreadWorld
from engine.parallel.world import RankFailedError

Work = Callable[[int], int]


@pytest.mark.parametrize(
    ("tp_size", "dcp_size", "complaint"),
    [
        (6, 4, "tp_size 6 is not a multiple of dcp_size 4"),
        (2, 4, "tp_size 2 is not a multiple of dcp_size 4"),
        (0, 1, "tp_size must be at least 1, got 0"),
        (10**12, 10**12, "tp_size must be at most 1024, got 1000000000000"),
        (1, -1, "dcp_size must be at least 1, got -1"),
    ],
)
def test_a_world_that_cannot_be_laid_out_is_refused_in_one_line(tp_size: int, dcp_size: int, complaint: str) -> None:
    with pytest.raises(LayoutError, match=f"^{complaint}$"):
        Layout(tp_size=tp_size, dcp_size=dcp_size)


@pytest.mark.parametrize(
    ("tp_size", "dcp_size", "complaint"),
    [
        (3, 1, r"4 attention heads do not divide over 3 groups of ranks \(tp_size 3 / dcp_size 1\)"),
        (16, 2, r"4 attention heads do not divide over 8 groups of ranks \(tp_size 16 / dcp_size 2\)"),
    ],
)
def test_heads_that_do_not_divide_are_refused_in_one_line(tp_size: int, dcp_size: int, complaint: str) -> None:
    with pytest.raises(LayoutError, match=f"^{complaint}$"):
        Layout(tp_size=tp_size, dcp_size=dcp_size).heads(TINY, group=0)


def test_kv_heads_that_neither_divide_nor_repeat_evenly_are_refused() -> None:
    model = type(TINY)(**{**{f: getattr(TINY, f) for f in TINY.__struct_fields__}, "num_heads": 6, "num_kv_heads": 3})
    with pytest.raises(LayoutError, match="3 KV heads do not divide over 2 groups"):
        Layout(tp_size=2).heads(model, group=0)


@pytest.mark.parametrize(("tp_size", "dcp_size"), [(1, 1), (2, 1), (2, 2), (3, 3), (4, 1), (4, 2), (4, 4), (6, 3)])
def test_groups_share_out_all_heads_and_every_query_head_finds_its_kv_head(tp_size: int, dcp_size: int) -> None:
    layout = Layout(tp_size=tp_size, dcp_size=dcp_size)
    shards = [layout.heads(TINY, group=group) for group in range(layout.num_groups)]
    queries = [head for shard in shards for head in range(shard.first_head, shard.first_head + shard.num_heads)]
    assert queries == list(range(TINY.num_heads))
    for shard in shards:
        assert needed_kv_heads(shard) == set(range(shard.first_kv_head, shard.first_kv_head + shard.num_kv_heads))


def needed_kv_heads(shard: HeadShard) -> set[int]:
    heads = range(shard.first_head, shard.first_head + shard.num_heads)
    return {head * TINY.num_kv_heads // TINY.num_heads for head in heads}


def test_dcp_groups_are_contiguous_runs_of_ranks() -> None:
    layout = Layout(tp_size=6, dcp_size=3)
    assert [layout.group(rank) for rank in range(6)] == [0, 0, 0, 1, 1, 1]
    assert [layout.dcp_rank(rank) for rank in range(6)] == [0, 1, 2, 0, 1, 2]


@pytest.mark.parametrize("size", [1, 2, 5])
def test_all_gather_gives_every_rank_everybodys_tensor_in_rank_order(size: int) -> None:
    """Many collectives in a row, each with other values: none may see those of a neighbouring one."""

    def build(group: Group) -> Callable[[int], list[list[int]]]:
        def work(rounds: int) -> list[list[int]]:
            return [group.all_gather(torch.tensor(1000 * n + group.rank)).tolist() for n in range(rounds)]

        return work

    world = ThreadWorld(size=size, build=build)
    expected = [[1000 * n + rank for rank in range(size)] for n in range(300)]
    assert world.call(300) == [expected] * size
    assert world.call(2) == [expected[:2]] * size
    world.close()


@pytest.mark.parametrize("size", [1, 2, 5])
def test_all_reduce_gives_every_rank_the_same_sum_and_leaves_its_tensor_alone(size: int) -> None:
    def build(group: Group) -> Callable[[int], list[tuple[list[float], bool]]]:
        def work(seed: int) -> list[tuple[list[float], bool]]:
            own = torch.rand(7, generator=torch.Generator().manual_seed(seed + group.rank))
            before = own.clone()
            totals = [group.all_reduce(own) for _ in range(50)]
            return [(total.tolist(), torch.equal(own, before)) for total in totals]

        return work

    world = ThreadWorld(size=size, build=build)
    own = [torch.rand(7, generator=torch.Generator().manual_seed(3 + rank)) for rank in range(size)]
    answers = world.call(3)
    assert answers == [answers[0]] * size
    for total, unchanged in answers[0]:
        assert unchanged
        torch.testing.assert_close(torch.tensor(total), torch.stack(own).sum(0))
    world.close()


def test_subgroups_are_runs_of_neighbours_that_exchange_among_themselves() -> None:
    def build(group: Group) -> Callable[[int], list[object]]:
        pair = group.subgroup(size=2)
        alone = pair.subgroup(size=1)

        def work(rounds: int) -> list[object]:
            own = torch.tensor(group.rank)
            for _ in range(rounds):
                gathered = pair.all_gather(own).tolist()
                total = int(group.all_reduce(own))
            return [pair.rank, pair.size, gathered, total, alone.all_gather(own).tolist()]

        return work

    world = ThreadWorld(size=4, build=build)
    assert world.call(50) == [
        [0, 2, [0, 1], 6, [0]],
        [1, 2, [0, 1], 6, [1]],
        [0, 2, [2, 3], 6, [2]],
        [1, 2, [2, 3], 6, [3]],
    ]
    world.close()


def test_a_rank_that_fails_frees_the_ranks_that_wait_in_a_subgroup() -> None:
    def build(group: Group) -> Work:
        pair = group.subgroup(size=2)

        def work(task: int) -> int:
            if group.rank == 3:
                raise ZeroDivisionError("not with me")
            return int(pair.all_gather(torch.tensor(task)).sum())

        return work

    world = ThreadWorld(size=4, build=build)
    with pytest.raises(RankFailedError, match=r"^rank 3 failed"):
        world.call(1)
    world.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("rank-")]


def test_ranks_run_in_inference_mode_on_threads_of_their_own() -> None:
    def work(_: int) -> tuple[bool, str]:
        return torch.is_inference_mode_enabled(), threading.current_thread().name

    world = ThreadWorld(size=2, build=lambda group: work)
    assert world.call(0) == [(True, "rank-0"), (True, "rank-1")]
    world.close()


def gatherer(group: Group, *, before: Callable[[Group, int], None]) -> Work:
    def work(task: int) -> int:
        before(group, task)
        return int(group.all_gather(torch.tensor(task)).sum())

    return work


def test_a_rank_that_fails_is_named_and_frees_the_others_from_their_collective() -> None:
    def before(group: Group, task: int) -> None:
        if group.rank == 1 and task == 7:
            raise ZeroDivisionError("no seventh task")

    world = ThreadWorld(size=3, build=lambda group: gatherer(group, before=before))
    assert world.call(5) == [15, 15, 15]
    with pytest.raises(RankFailedError, match=r"^rank 1 failed: ZeroDivisionError: no seventh task$") as caught:
        world.call(7)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    with pytest.raises(RankFailedError, match="rank 1 failed"):
        world.call(5)
    world.close()
    assert_no_rank_is_left()


def test_a_rank_that_fails_after_the_last_collective_is_named_too() -> None:
    def build(group: Group) -> Work:
        def work(task: int) -> int:
            group.all_gather(torch.tensor(task))
            return 1 // (2 - group.rank)

        return work

    world = ThreadWorld(size=3, build=build)
    with pytest.raises(RankFailedError, match="rank 2 failed: ZeroDivisionError"):
        world.call(0)
    world.close()
    assert_no_rank_is_left()


def test_a_rank_that_cannot_start_ends_the_world_at_once() -> None:
    def build(group: Group) -> Work:
        if group.rank == 1:
            raise MemoryError("no room for weights")
        return lambda task: task

    with pytest.raises(RankFailedError, match="rank 1 failed: MemoryError: no room for weights"):
        ThreadWorld(size=2, build=build)
    assert_no_rank_is_left()


def test_a_rank_that_stays_away_from_a_collective_is_named_after_the_timeout() -> None:
    release = threading.Event()

    def before(group: Group, _: int) -> None:
        if group.rank == 1:
            assert release.wait(60)

    world = ThreadWorld(size=2, timeout=0.5, build=lambda group: gatherer(group, before=before))
    with pytest.raises(RankFailedError, match=r"ranks \[1\] did not reach collective 1 within 0.5 s"):
        world.call(0)
    release.set()
    world.close()
    assert_no_rank_is_left()


def test_a_rank_that_does_not_finish_is_named_after_twice_the_timeout() -> None:
    release = threading.Event()

    def build(group: Group) -> Work:
        return lambda task: int(group.rank != 1 or release.wait(60))

    world = ThreadWorld(size=3, timeout=0.5, build=build)
    with pytest.raises(RankFailedError, match=r"^ranks \[1\] did not finish a task within 1 s$"):
        world.call(0)
    release.set()
    with pytest.raises(RankFailedError, match="did not finish"):
        world.call(0)
    world.close()
    assert_no_rank_is_left()


@pytest.mark.parametrize("dim", [0, 1, 2, -1, -2])
def test_a_gather_along_any_dimension_puts_the_parts_side_by_side(dim: int) -> None:
    parts = [torch.arange(24).view(2, 3, 4) + 100 * rank for rank in range(3)]

    def build(group: Group) -> Callable[[int], list[object]]:
        return lambda _: all_gather_along(group, parts[group.rank], dim=dim).tolist()

    world = ThreadWorld(size=3, build=build)
    assert world.call(0) == [torch.cat(parts, dim=dim).tolist()] * 3
    world.close()


def test_a_closed_world_has_no_threads_and_takes_no_calls() -> None:
    world: ThreadWorld[int, int] = ThreadWorld(size=2, build=lambda group: lambda task: task)
    world.close()
    world.close()
    with pytest.raises(RankFailedError, match="the ranks are closed"):
        world.call(0)
    assert_no_rank_is_left()


def assert_no_rank_is_left() -> None:
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("rank-")] == []
