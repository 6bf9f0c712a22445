"""Collectives of rank processes, by torch.distributed: gloo on CPUs, NCCL on GPUs.

Ranks meet at a TCPStore first. A collective that does not complete raises `CollectiveError`, which says that somebody
else is at fault. Knows nothing of what is exchanged.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from engine.parallel.interface import interface_towards
from engine.parallel.seat import Meeting, Seat
from engine.parallel.world import CollectiveError

__all__ = ["Store", "joined", "meet"]

_BACKENDS = {"cpu": "gloo", "cuda": "cpu:gloo,cuda:nccl"}


class Store(Protocol):
    """What ranks share before they are a group."""

    def set(self, key: str, value: str) -> None:
        """Leave ``value`` for all."""
        ...

    def get(self, key: str) -> bytes:
        """What somebody left, once it is there."""
        ...


def meet(seat: Seat, meeting: Meeting, *, seconds: float) -> Store:
    """The store that all ranks share, once it can be reached; rank 0 serves it unless it is served already.

    Raises:
        CollectiveError: it could not be reached in time.
    """
    serves = seat.rank == 0 and not meeting.served
    try:
        server = dist.TCPStore(  # type: ignore[attr-defined]
            meeting.host,
            meeting.port,
            seat.size,
            is_master=serves,
            timeout=timedelta(seconds=seconds),
            wait_for_workers=False,
            master_listen_fd=meeting.listen_fd if serves else None,
        )
        store: Store = dist.PrefixStore(f"kvsteer/{meeting.attempt}", server)  # type: ignore[attr-defined]
        return store
    except RuntimeError as error:
        raise CollectiveError(f"no meeting at {meeting.host}:{meeting.port}: {_brief(error)}") from None


@contextmanager
def joined(
    store: Store, seat: Seat, meeting: Meeting, *, device: torch.device, timeout: float
) -> Iterator[_ProcessGroup]:
    """The group of all ranks, for tensors on ``device``; ``timeout`` bounds each collective, in seconds.

    Raises:
        CollectiveError: not all ranks joined.
    """
    _choose_interface(meeting.host)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    try:
        dist.init_process_group(
            _BACKENDS[device.type],
            store=store,  # type: ignore[arg-type]
            rank=seat.rank,
            world_size=seat.size,
            timeout=timedelta(seconds=timeout),
            device_id=device if device.type == "cuda" else None,
        )
    except RuntimeError as error:
        raise CollectiveError(f"{seat.size} ranks could not join: {_brief(error)}") from None
    yield _ProcessGroup(dist.group.WORLD, range(seat.size), rank=seat.rank)
    dist.destroy_process_group()


def _choose_interface(host: str) -> None:
    """Left alone, gloo takes the interface of the host's name, which is often not the one that the others see."""
    for variable in ("GLOO_SOCKET_IFNAME",) if _is_loopback(host) else ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        name = interface_towards(host)
        if name is not None:
            os.environ.setdefault(variable, name)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _brief(error: Exception) -> str:
    """The first sentence of what torch says, without the source line that it starts with."""
    text = " ".join(str(error).split())
    if text.startswith("["):
        text = text.partition("] ")[2] or text
    return text.partition(". ")[0]


class _ProcessGroup:
    """A `Group` of processes; ``members`` are ranks of the world, ``rank`` is this one's place among them."""

    def __init__(self, group: dist.ProcessGroup | None, members: range, *, rank: int) -> None:
        self.rank = rank
        self.size = len(members)
        self._group = group  # None where this rank is alone
        self._members = members
        self._collectives = 0

    def all_gather(self, tensor: Tensor) -> Tensor:
        if self.size == 1:
            return tensor.unsqueeze(0)
        gathered = tensor.new_empty(self.size * tensor.numel())
        flat = tensor.reshape(-1)  # gloo wants the parts one after the other
        self._complete(lambda: dist.all_gather_single(gathered, flat, group=self._group))
        return gathered.view(self.size, *tensor.shape)

    def all_reduce(self, tensor: Tensor) -> Tensor:
        total = tensor.clone(memory_format=torch.contiguous_format)
        if self.size > 1:
            self._complete(lambda: dist.all_reduce(total, group=self._group))
        return total

    def subgroup(self, *, size: int) -> _ProcessGroup:
        assert self.size % size == 0, f"{self.size} ranks do not make groups of {size}"
        if size == self.size:
            return self
        first = self.rank - self.rank % size
        members = self._members[first : first + size]
        group = dist.new_group(list(members), use_local_synchronization=True) if size > 1 else None
        return _ProcessGroup(group, members, rank=self.rank - first)

    def _complete(self, collective: Callable[[], object]) -> None:
        self._collectives += 1
        try:
            collective()
        except RuntimeError as error:
            raise CollectiveError(f"collective {self._collectives} did not complete: {_brief(error)}") from error
