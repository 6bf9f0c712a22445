"""What collectives cost: a rank's work that does nothing else, and times itself.

The same for thread ranks and for rank processes. Knows no model.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec
import torch
from torch import Tensor

from engine.parallel.group import Group

__all__ = ["Trial", "timed_rank"]


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """``rounds`` times one collective, on a float32 tensor of ``shape``."""

    collective: str
    shape: tuple[int, ...]
    rounds: int


def timed_rank(group: Group) -> Callable[[bytes], bytes]:
    """What a rank does with an encoded `Trial`: the seconds of each round. Anything else is taken and forgotten."""
    collectives: dict[str, Callable[[Tensor], Tensor]] = {"gather": group.all_gather, "sum": group.all_reduce}
    decoder = msgspec.json.Decoder(Trial)

    def work(task: bytes) -> bytes:
        if not task.startswith(b"{"):
            return b""
        trial = decoder.decode(task)
        tensor = torch.zeros(trial.shape)
        return msgspec.json.encode([_seconds(collectives[trial.collective], tensor) for _ in range(trial.rounds)])

    return work


def _seconds(collective: Callable[[Tensor], Tensor], tensor: Tensor) -> float:
    started = time.perf_counter()
    collective(tensor)
    return time.perf_counter() - started
