"""A forward pass by ranks in processes of their own, here or on other machines. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from engine.parallel.processes import LossListener, ProcessWorld
from engine.parallel.seat import Cluster
from engine.runner.base import Chunk
from engine.runner.rank_plan import RankPlan
from engine.runner.step_wire import REPORT, StepWriter

__all__ = ["ProcessRunner"]


class ProcessRunner:
    """A `Runner` that carries out ``plan``; ``timeout`` and ``cluster`` are `ProcessWorld`'s.

    Raises:
        LayoutError: the model's heads do not divide over the ranks; nothing has been started then.
        RankFailedError: a rank did not start.
        OSError: the address where ranks of several machines meet is taken, or not this machine's.
    """

    def __init__(self, plan: RankPlan, *, timeout: float = 120.0, cluster: Cluster | None = None) -> None:
        plan.check()
        self._writer = StepWriter()
        self._tokens = msgspec.msgpack.Decoder(list[int])
        self._world = ProcessWorld(
            size=plan.layout.tp_size, build=plan, device=plan.device, timeout=timeout, cluster=cluster
        )
        self.ready = self._world.call(REPORT)
        """The ranks' ready messages, as they came."""

    @property
    def pids(self) -> list[int]:
        """Process ids of the ranks, in rank order."""
        return self._world.pids

    def run(self, chunks: Sequence[Chunk]) -> list[int | None]:
        """Next tokens of the chunks that sample.

        Raises:
            RankFailedError: a rank is lost, now or earlier; the message names it.
        """
        if not chunks:
            return []
        tokens = iter(self._tokens.decode(self._world.call(self._writer.write(chunks))[0]))
        return [next(tokens) if chunk.sampling is not None else None for chunk in chunks]

    def on_loss(self, listener: LossListener) -> None:
        """Have ``listener`` called, on a thread of ours, once a rank is lost, which may be between two steps."""
        self._world.on_loss(listener)

    def close(self) -> None:
        """End the ranks. Idempotent."""
        self._world.close()
