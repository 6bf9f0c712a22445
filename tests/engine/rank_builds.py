"""What ranks of the process tests build. In a module of its own, so that rank processes can import it."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable

import msgspec
import torch
from torch import Tensor

from engine.parallel.group import Group, all_gather_along

Work = Callable[[bytes], bytes]


def numbers(rank: int, *shape: int) -> Tensor:
    """A tensor that every test can draw for every rank."""
    return torch.rand(shape, generator=torch.Generator().manual_seed(rank))


def collectives(group: Group) -> Work:
    """Tasks are names of collectives; the result is what this rank got."""
    pair = group.subgroup(size=2)
    alone = pair.subgroup(size=1)
    tasks: dict[bytes, Callable[[], object]] = {
        b"gather": lambda: group.all_gather(numbers(group.rank, 2, 3)).tolist(),
        b"gather-scalars": lambda: group.all_gather(torch.tensor(10 + group.rank)).tolist(),
        b"gather-strided": lambda: group.all_gather(numbers(group.rank, 4, 3)[::2].T).tolist(),
        b"gather-none": lambda: list(group.all_gather(torch.empty(0, 5)).shape),
        b"along-0": lambda: all_gather_along(group, numbers(group.rank, 2, 3, 4), dim=0).tolist(),
        b"along-1": lambda: all_gather_along(group, numbers(group.rank, 2, 3, 4), dim=1).tolist(),
        b"along-last": lambda: all_gather_along(group, numbers(group.rank, 2, 3, 4), dim=-1).tolist(),
        b"reduce": lambda: group.all_reduce(numbers(group.rank, 1000)).tolist(),
        b"reduce-strided": lambda: group.all_reduce(numbers(group.rank, 6, 4).T).tolist(),
        b"reduce-untouched": lambda: _untouched(group),
        b"pair": lambda: [pair.rank, pair.size, pair.all_gather(torch.tensor(group.rank)).tolist()],
        b"alone": lambda: [alone.rank, alone.size, alone.all_reduce(torch.tensor(group.rank)).tolist()],
        b"modes": lambda: [torch.is_inference_mode_enabled(), torch.get_num_threads()],
    }
    return lambda task: msgspec.msgpack.encode(tasks[task]())


def _untouched(group: Group) -> bool:
    own = numbers(group.rank, 7)
    before = own.clone()
    group.all_reduce(own)
    return bool((own == before).all())


def troublemaker(group: Group) -> Work:
    """Rank 1 does what the task says, then all meet in a collective."""

    def work(task: bytes) -> bytes:
        if group.rank == 1 and task in trouble:
            trouble[task]()
        return str(int(group.all_reduce(torch.tensor(group.rank + 1)))).encode()

    return work


def _raise() -> None:
    raise ZeroDivisionError("no seventh task")


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def _leave() -> None:
    os._exit(5)


def _sleep() -> None:
    threading.Event().wait()


trouble: dict[bytes, Callable[[], None]] = {
    b"raise": _raise,
    b"die": _die,
    b"stop": _stop,
    b"leave": _leave,
    b"sleep": _sleep,
}


def without_room(group: Group) -> Work:
    """Rank 1 cannot be built; the others wait for it."""
    if group.rank == 1:
        raise MemoryError("no room for weights")
    group.all_reduce(torch.tensor(1))
    return lambda task: task


class Unimportable:
    """Pickles as something that no process can import."""

    def __reduce__(self) -> tuple[Callable[[str], object], tuple[str]]:
        return __import__, ("no_such_module_anywhere",)

    def __call__(self, group: Group) -> Work:
        raise AssertionError
