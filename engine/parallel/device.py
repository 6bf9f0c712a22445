"""Which device a rank computes on."""

from __future__ import annotations

import torch

__all__ = ["DeviceError", "rank_device", "resolve_device"]


class DeviceError(ValueError):
    """A device that torch does not know or this machine does not have."""


def resolve_device(name: str) -> torch.device:
    """The device that ``--device`` names; ``auto`` is a CUDA GPU where there is one, else the CPU.

    Raises:
        DeviceError: an unknown name, or a device that is not there.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name.partition(":")[0] not in ("cpu", "cuda"):
        raise DeviceError(f"device {name!r} is unknown, it may be auto, cpu, cuda or cuda:N")
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise DeviceError(f"device {name!r} is not there, this machine has {torch.cuda.device_count()} CUDA devices")
    return device


def rank_device(name: str, *, local_rank: int, local_size: int) -> torch.device:
    """The device of one of ``local_size`` rank processes on this machine: the CPU, or a GPU that no other has.

    Raises:
        DeviceError: as ``resolve_device``, or fewer GPUs than ranks.
    """
    device = resolve_device(name)
    if device.type == "cpu":
        return device
    count = torch.cuda.device_count()
    if count < local_size:
        raise DeviceError(
            f"{local_size} ranks of this machine need a GPU each, it has {count}: give --device cpu, fewer ranks, or "
            "--rank-backend threads, with which ranks share one"
        )
    return torch.device("cuda", local_rank)
