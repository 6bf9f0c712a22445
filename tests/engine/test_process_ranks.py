"""Ranks as processes: the same collectives as threads', and ends that name who was lost and leave nothing behind."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import closing

import msgspec
import pytest
import torch
from patience import PATIENCE
from process_table import assert_gone
from rank_builds import Unimportable, collectives, numbers, troublemaker, without_room

from engine.parallel.processes import ProcessWorld
from engine.parallel.world import RankFailedError

SIZE = 4
HANG_S = 6.0  # also what starting ranks get to meet each other


def got(world: ProcessWorld, task: bytes) -> list[object]:
    return [msgspec.msgpack.decode(result) for result in world.call(task)]


@pytest.fixture(scope="module")
def world() -> Iterator[ProcessWorld]:
    with closing(ProcessWorld(size=SIZE, build=collectives)) as world:
        yield world


def everybodys(*shape: int) -> list[torch.Tensor]:
    return [numbers(rank, *shape) for rank in range(SIZE)]


def test_all_gather_gives_every_rank_everybodys_tensor_in_rank_order(world: ProcessWorld) -> None:
    assert got(world, b"gather") == [torch.stack(everybodys(2, 3)).tolist()] * SIZE
    assert got(world, b"gather-scalars") == [[10, 11, 12, 13]] * SIZE
    strided = [tensor[::2].T for tensor in everybodys(4, 3)]
    assert got(world, b"gather-strided") == [torch.stack(strided).tolist()] * SIZE
    assert got(world, b"gather-none") == [[SIZE, 0, 5]] * SIZE


@pytest.mark.parametrize(("task", "dim"), [(b"along-0", 0), (b"along-1", 1), (b"along-last", 2)])
def test_a_gather_along_any_dimension_puts_the_parts_side_by_side(world: ProcessWorld, task: bytes, dim: int) -> None:
    assert got(world, task) == [torch.cat(everybodys(2, 3, 4), dim=dim).tolist()] * SIZE


def test_all_reduce_gives_every_rank_the_same_sum_to_the_last_bit_and_leaves_its_tensor_alone(
    world: ProcessWorld,
) -> None:
    sums = got(world, b"reduce")
    assert sums == [sums[0]] * SIZE
    torch.testing.assert_close(torch.tensor(sums[0]), sum(everybodys(1000), torch.zeros(1000)))
    strided = torch.tensor(got(world, b"reduce-strided")[0])
    torch.testing.assert_close(strided, sum(everybodys(6, 4), torch.zeros(6, 4)).T)
    assert got(world, b"reduce-untouched") == [True] * SIZE


def test_subgroups_are_runs_of_neighbours(world: ProcessWorld) -> None:
    assert got(world, b"pair") == [[0, 2, [0, 1]], [1, 2, [0, 1]], [0, 2, [2, 3]], [1, 2, [2, 3]]]
    assert got(world, b"alone") == [[0, 1, rank] for rank in range(SIZE)]


def test_ranks_run_in_inference_mode_with_one_thread_each(world: ProcessWorld) -> None:
    assert got(world, b"modes") == [[True, 1]] * SIZE


def test_signals_that_are_meant_for_the_engine_do_not_end_a_rank(world: ProcessWorld) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(world.pids[1], number)
    assert got(world, b"alone") == [[0, 1, rank] for rank in range(SIZE)]


def test_a_closed_world_has_no_processes_and_takes_no_calls() -> None:
    before = set(threading.enumerate())
    world = ProcessWorld(size=2, build=troublemaker)
    assert world.call(b"") == [b"3", b"3"]
    world.close()
    world.close()
    assert_gone(world.pids, already=True)
    with pytest.raises(RankFailedError, match=r"^the ranks are closed$"):
        world.call(b"")
    assert set(threading.enumerate()) <= before


@pytest.mark.parametrize(
    ("task", "complaint"),
    [
        (b"raise", r"failed: ZeroDivisionError: no seventh task"),
        (b"die", r"was killed by SIGKILL"),
        (b"leave", r"exited with status 5"),
    ],
)
def test_a_rank_that_is_lost_in_a_task_is_named_and_the_others_end(task: bytes, complaint: str) -> None:
    with closing(ProcessWorld(size=3, build=troublemaker)) as world:
        assert world.call(b"") == [b"6"] * 3
        told = told_of_loss(world)
        pids = world.pids
        with pytest.raises(RankFailedError, match=rf"^rank 1 \(pid {pids[1]}\) {complaint}$") as caught:
            world.call(task)
        assert ("ZeroDivisionError" in str(caught.value.__cause__)) == (task == b"raise")
        assert_gone(pids)
        assert told.get() is caught.value
        with pytest.raises(RankFailedError, match=r"^rank 1"):
            world.call(b"")


class Told:
    """What a listener heard, once it did."""

    def __init__(self) -> None:
        self._heard: list[RankFailedError] = []
        self._event = threading.Event()

    def __call__(self, error: RankFailedError) -> None:
        self._heard.append(error)
        self._event.set()

    def get(self) -> RankFailedError:
        assert self._event.wait(PATIENCE)
        (error,) = self._heard
        return error


def told_of_loss(world: ProcessWorld) -> Told:
    told = Told()
    world.on_loss(told)
    return told


def test_a_rank_that_is_killed_between_tasks_is_noticed_without_one() -> None:
    with closing(ProcessWorld(size=2, build=troublemaker)) as world:
        told = told_of_loss(world)
        pids = world.pids
        os.kill(pids[0], signal.SIGKILL)
        assert str(told.get()) == f"rank 0 (pid {pids[0]}) was killed by SIGKILL"
        assert_gone(pids)
        with pytest.raises(RankFailedError, match=r"^rank 0 .* was killed by SIGKILL$"):
            world.call(b"")
        assert told_of_loss(world).get() is told.get()


@pytest.mark.parametrize("task", [b"stop", b"sleep"])
def test_a_rank_that_hangs_is_named_after_the_timeout(task: bytes) -> None:
    with closing(ProcessWorld(size=2, build=troublemaker, timeout=HANG_S)) as world:
        world.call(b"")  # by now the ranks have met, which takes its time where many processes want a core
        pids = world.pids
        started = time.monotonic()
        silent = rf"^rank 1 \(pid {pids[1]}\) did not answer: rank 0 .* waited in vain: .*collective 2 did not complete"
        with pytest.raises(RankFailedError, match=silent):
            world.call(task)
        assert time.monotonic() - started >= HANG_S
        assert_gone(pids)


def test_a_rank_that_cannot_be_built_ends_the_world_at_once() -> None:
    with pytest.raises(RankFailedError, match=r"^rank 1 \(pid \d+\) failed: MemoryError: no room for weights$"):
        ProcessWorld(size=3, build=without_room)


def test_a_rank_that_cannot_import_what_it_needs_says_so() -> None:
    with pytest.raises(
        RankFailedError, match=r"^rank \d \(pid \d+\) failed: ModuleNotFoundError: No module named 'no_"
    ):
        ProcessWorld(size=2, build=Unimportable())
