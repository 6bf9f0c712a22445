"""A forward pass on torch, by ranks that are threads of this process and share one device.

Knows nothing of scheduling: it computes the chunks it is given. Ranks in processes of their own have a runner of their
own, `engine.runner.process_runner`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from contract.geometry import Geometry
from engine.model.source import ModelSource
from engine.parallel.group import Group
from engine.parallel.layout import Layout
from engine.parallel.threads import ThreadWorld
from engine.runner.base import Chunk
from engine.runner.decode_graphs import capture_on
from engine.runner.rank_plan import RankPlan
from engine.runner.torch_rank import StepTask, TorchRank

__all__ = ["TorchRunner"]


class TorchRunner:
    """A `Runner` that computes a model on ``layout``'s ranks, with a cache of ``num_blocks`` logical blocks.

    ``state_slots`` are slots of states, where the model has states; ``timeout`` is `ThreadWorld`'s.

    Raises:
        LayoutError: the model's heads do not divide over the ranks; nothing has been started then.
        RankFailedError: a rank did not start.
    """

    def __init__(
        self,
        *,
        source: ModelSource,
        layout: Layout,
        geometry: Geometry,
        num_blocks: int,
        device: torch.device,
        dtype: str = "auto",
        state_slots: int = 0,
        timeout: float = 120.0,
    ) -> None:
        self._plan = RankPlan(
            source=source,
            layout=layout,
            geometry=geometry,
            num_blocks=num_blocks,
            device=str(device),
            dtype=dtype,
            state_slots=state_slots,
        )
        self._plan.check()
        self._device = device
        self._world: ThreadWorld[StepTask, list[int]] = ThreadWorld(
            size=layout.tp_size, build=self._build, timeout=timeout
        )

    def run(self, chunks: Sequence[Chunk]) -> list[int | None]:
        """Next tokens of the chunks that sample.

        Raises:
            RankFailedError: a rank raised, now or earlier; the message names it.
        """
        if not chunks:
            return []
        # Planned once: all ranks read the same tensors.
        tokens = iter(self._world.call(StepTask.of(chunks, self._plan, device=self._device))[0])
        return [next(tokens) if chunk.sampling is not None else None for chunk in chunks]

    def _build(self, group: Group) -> TorchRank:
        """Threads hand tensors to each other behind CUDA's back: no graph would do that again."""
        return TorchRank(self._plan, group, capture=capture_on(self._device) if group.size == 1 else None)

    def close(self) -> None:
        """End the ranks. Idempotent."""
        self._world.close()
