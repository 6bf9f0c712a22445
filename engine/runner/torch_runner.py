"""A forward pass on torch, by a world of ranks.

The ranks are threads of this process and share one device. Rank 0 samples. Knows nothing of scheduling: it computes
the chunks it is given.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from contract.geometry import Geometry
from engine.cache.pools import KVPool
from engine.model.attention import Attention
from engine.model.config import ModelConfig
from engine.model.llama import Llama
from engine.model.step import Step, plan_step
from engine.model.weights import draw_weights
from engine.parallel.group import Group
from engine.parallel.layout import Layout
from engine.parallel.threads import ThreadWorld
from engine.runner.base import Chunk
from engine.runner.sampling import Draw, draws_of, sample

__all__ = ["DeviceError", "TorchRunner", "resolve_device"]


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


class TorchRunner:
    """A `Runner` that computes ``model`` on ``layout``'s ranks, with a cache of ``num_blocks`` logical blocks.

    Raises:
        LayoutError: the heads of ``model`` do not divide over the ranks; nothing has been started then.
        RankFailedError: a rank did not start.
    """

    def __init__(
        self, *, model: ModelConfig, layout: Layout, geometry: Geometry, num_blocks: int, device: torch.device
    ) -> None:
        assert layout.dcp_size == geometry.dcp_size, (
            f"layout and geometry disagree: dcp_size {layout.dcp_size} and {geometry.dcp_size}"
        )
        for group in range(layout.num_groups):
            layout.heads(model, group=group)
        self._geometry = geometry
        self._device = device
        self._world: ThreadWorld[_Task, list[int]] = ThreadWorld(
            size=layout.tp_size,
            build=lambda group: _Rank(
                model=model, layout=layout, geometry=geometry, num_blocks=num_blocks, device=device, group=group
            ),
        )

    def run(self, chunks: Sequence[Chunk]) -> list[int | None]:
        """Next tokens of the chunks that sample.

        Raises:
            RankFailedError: a rank raised, now or earlier; the message names it.
        """
        if not chunks:
            return []
        step = plan_step(chunks, self._geometry, device=self._device)
        tokens = iter(self._world.call(_Task(step, draws_of(chunks)))[0])
        return [next(tokens) if chunk.sampling is not None else None for chunk in chunks]

    def close(self) -> None:
        """End the ranks. Idempotent."""
        self._world.close()


@dataclass(frozen=True)
class _Task:
    """What every rank is given; only rank 0 looks at ``draws``."""

    step: Step
    draws: Sequence[Draw]


class _Rank:
    """One rank: its weights, its pool, its model."""

    def __init__(
        self,
        *,
        model: ModelConfig,
        layout: Layout,
        geometry: Geometry,
        num_blocks: int,
        device: torch.device,
        group: Group,
    ) -> None:
        torch.set_num_threads(1)  # more would fight with the other ranks for the same cores
        heads = layout.heads(model, group=layout.group(group.rank))
        pool = KVPool(
            num_layers=model.num_layers,
            num_blocks=num_blocks,
            page_size=geometry.page_size,
            num_kv_heads=heads.num_kv_heads,
            head_dim=model.head_dim,
            device=device,
        )
        self._samples = group.rank == 0
        self._model = Llama(
            model=model,
            heads=heads,
            weights=draw_weights(model, heads, device=device),
            attention=Attention(pool=pool, geometry=geometry, layout=layout, group=group, device=device),
        )

    def __call__(self, task: _Task) -> list[int]:
        """The sampled tokens on rank 0, nothing on the others."""
        states = self._model.forward(task.step)
        if not (self._samples and task.draws):
            return []
        return sample(self._model.logits(states), task.draws)
