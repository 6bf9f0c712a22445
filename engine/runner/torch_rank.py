"""One rank on torch: the same code in a thread and in a process of its own. Rank 0 samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import torch

from engine.model.build import build_model
from engine.model.dtype import resolve_dtype
from engine.model.step import Step, plan_step
from engine.parallel.device import resolve_device
from engine.parallel.group import Group
from engine.ready import ReadyMessage, encode_ready
from engine.runner.base import Chunk
from engine.runner.decode_graphs import Capture, DecodeGraphs, capture_on
from engine.runner.rank_plan import RankPlan
from engine.runner.sampling import Draw, draws_of, sample
from engine.runner.step_wire import REPORT, StepReader

__all__ = ["StepTask", "TorchRank", "WiredRank"]


@dataclass(frozen=True)
class StepTask:
    """What every rank is given; what ``draws`` say is for rank 0, that there are some for all."""

    step: Step
    draws: Sequence[Draw]

    @classmethod
    def of(cls, chunks: Sequence[Chunk], plan: RankPlan, *, device: torch.device) -> StepTask:
        """The step that computes ``chunks``: the same for all ranks on ``device``."""
        return cls(plan_step(chunks, plan.geometry, device=device), draws_of(chunks))


class TorchRank:
    """One rank: its model, and whether it samples. With ``capture``, decode steps are captured and replayed by it."""

    def __init__(self, plan: RankPlan, group: Group, *, capture: Capture | None = None) -> None:
        torch.set_num_threads(1)  # more would fight with the other ranks for the same cores
        self.device = resolve_device(plan.device)
        self._samples = group.rank == 0
        self._model = build_model(
            plan.source,
            layout=plan.layout,
            geometry=plan.geometry,
            num_blocks=plan.num_blocks,
            device=self.device,
            dtype=resolve_dtype(plan.dtype, device=self.device, kept=plan.source.config.dtype),
            group=group,
            state_slots=plan.state_slots,
        )
        self._forward = self._model.forward if capture is None else self._graphs(plan, capture).forward

    def __call__(self, task: StepTask) -> list[int]:
        """The sampled tokens on rank 0, nothing on the others."""
        states = self._forward(task.step)
        if not task.draws:  # which all ranks know
            return []
        logits = self._model.logits(states)
        return sample(logits, task.draws) if self._samples else []

    def _graphs(self, plan: RankPlan, capture: Capture) -> DecodeGraphs:
        context = plan.source.config.max_context
        return DecodeGraphs(
            self._model.forward,
            columns=plan.geometry.blocks_for(context),
            dummy_position=min(plan.geometry.block_width, context) - 1,
            device=self.device,
            capture=capture,
        )


class WiredRank:
    """A rank in a process of its own: it gets chunks as bytes, and works out the rest. No bytes: it reports itself."""

    def __init__(self, plan: RankPlan, group: Group) -> None:
        self._plan = plan
        self._rank = TorchRank(plan, group, capture=capture_on(resolve_device(plan.device)))
        self._reader = StepReader()

    def __call__(self, payload: bytes) -> bytes:
        """The sampled tokens of one written step, on rank 0; or this rank's ready message."""
        if payload == REPORT:
            return encode_ready(ReadyMessage(block_width=self._plan.geometry.block_width))
        task = StepTask.of(self._reader.read(payload), self._plan, device=self._rank.device)
        return msgspec.msgpack.encode(self._rank(task))
