"""Collectives of rank processes, by torch.distributed: gloo on CPUs, NCCL on GPUs.

Ranks meet at a TCPStore first. A collective that does not complete raises `CollectiveError`, which says that somebody
else is at fault. Knows nothing of what is exchanged.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from engine.parallel.group import sum_in_order
from engine.parallel.interface import interface_towards
from engine.parallel.seat import Meeting, Seat
from engine.parallel.world import CollectiveError

__all__ = ["Store", "awaited", "joined", "meet"]

_ONE_HOP_BYTES = 256 * 1024
"""Up to here a sum costs less as a gather in one hop than around gloo's ring (4 ranks on 2 cores, and 2 on 2)."""
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


def awaited(store: Store, key: str) -> bytes:
    """What somebody left at the meeting, once it is there.

    Raises:
        CollectiveError: nobody did in time, or the meeting was over.
    """
    try:
        return store.get(key)
    except RuntimeError as error:
        raise CollectiveError(f"no {key!r} was left where the ranks meet: {_brief(error)}") from None


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
    yield _ProcessGroup(dist.group.WORLD, range(seat.size), rank=seat.rank, timeout=timedelta(seconds=timeout))
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

    def __init__(self, group: dist.ProcessGroup | None, members: range, *, rank: int, timeout: timedelta) -> None:
        self.rank = rank
        self.size = len(members)
        self._group = group  # None where this rank is alone
        self._members = members
        self._timeout = timeout
        self._collectives = 0

    def all_gather(self, tensor: Tensor) -> Tensor:
        if self._group is None:
            return tensor.unsqueeze(0)
        gathered = tensor.new_empty(self.size, *tensor.shape)
        with self._collective():
            self._gather(self._group, tensor.contiguous(), gathered)
        return gathered

    def all_reduce(self, tensor: Tensor) -> Tensor:
        if self._group is None:
            return tensor.clone()
        if tensor.device.type == "cpu" and tensor.nbytes <= _ONE_HOP_BYTES:
            return sum_in_order(self.all_gather(tensor).unbind())
        total = tensor.clone(memory_format=torch.contiguous_format)
        with self._collective():
            dist.all_reduce(total, group=self._group)
        return total

    def subgroup(self, *, size: int) -> _ProcessGroup:
        assert self.size % size == 0, f"{self.size} ranks do not make groups of {size}"
        if size == self.size:
            return self
        first = self.rank - self.rank % size
        members = self._members[first : first + size]
        return _ProcessGroup(self._formed(members), members, rank=self.rank - first, timeout=self._timeout)

    def _formed(self, members: range) -> dist.ProcessGroup | None:
        """What they exchange tensors by; a rank that is alone needs nothing."""
        if len(members) == 1:
            return None
        group: dist.ProcessGroup = dist.new_group(list(members), timeout=self._timeout, use_local_synchronization=True)
        return group

    def _gather(self, group: dist.ProcessGroup, own: Tensor, gathered: Tensor) -> None:
        if own.device.type == "cpu":
            self._exchange(group, own, gathered)
        else:
            dist.all_gather_single(gathered.view(-1), own.view(-1), group=group)

    def _exchange(self, group: dist.ProcessGroup, own: Tensor, gathered: Tensor) -> None:
        """Everybody sends to everybody. Gloo's own gather passes parts around a ring, and each of its hops wakes a
        process up: with more ranks than cores that is what a collective costs."""
        works = []
        for distance in range(1, self.size):
            to, source = (self.rank + distance) % self.size, (self.rank - distance) % self.size
            works.append(group.send([own], to, 0))
            works.append(group.recv([gathered[source]], source, 0))
        gathered[self.rank] = own
        for work in works:
            work.wait()

    @contextmanager
    def _collective(self) -> Iterator[None]:
        self._collectives += 1
        try:
            yield
        except RuntimeError as error:
            raise CollectiveError(f"collective {self._collectives} did not complete: {_brief(error)}") from error
