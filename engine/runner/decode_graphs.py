"""Decode steps as CUDA graphs: one graph for each padded batch size, captured when it is first needed.

A graph replays the same kernels and collectives on the same tensors, so a step is copied into buffers of the next size
up. The rows left over are dummies: they store nothing, and have a context of a block, so that every rank of a DCP group
has a share of it and nobody's collectives differ from the others'. Whether a step is replayed is decided from the step
alone, which all ranks share; all of them capture the same sizes in the same steps. Knows nothing of models.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch
from torch import Tensor

from engine.kernels.slot_mapping import NOT_HERE
from engine.model.step import DecodePart, Step

__all__ = ["Capture", "DecodeGraphs", "capture_on"]

_SIZES = (1, 2, 4, 8, 16, 32, 64)
"""Rows of a graph. A step of more is computed without one: its kernels take longer than it takes to launch them."""

_CAPTURING = threading.Lock()
"""A process may capture once at a time, and none of its threads may wait for the whole device meanwhile, which is how
a capture begins: lanes of one process take turns."""

Work = Callable[[], Tensor]
Capture = Callable[[Work], Work]
"""Makes of some work on tensors that stay where they are what does it again and gives the same tensor, renewed."""


def capture_on(device: torch.device) -> Capture | None:
    """Captures into CUDA graphs, which share the memory of what they compute on the way; None where there are none."""
    return _cuda_capture() if device.type == "cuda" else None


def _cuda_capture() -> Capture:
    memory = torch.cuda.graph_pool_handle()

    def capture(work: Work) -> Work:
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            work()  # compiles kernels and connects ranks, neither of which can be captured
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        # Other threads of this process, NCCL's watchdog among them, go on using CUDA meanwhile.
        with _CAPTURING, torch.cuda.graph(graph, pool=memory, capture_error_mode="thread_local"):
            result = work()

        def replay() -> Tensor:
            graph.replay()
            return result

        return replay

    return capture


class DecodeGraphs:
    """Computes steps by ``forward``, decode steps by what ``capture`` makes of it.

    A dummy stands at ``dummy_position``, the last of a block; tables have ``columns`` blocks at most.
    """

    def __init__(
        self,
        forward: Callable[[Step], Tensor],
        *,
        columns: int,
        dummy_position: int,
        device: torch.device,
        capture: Capture,
    ) -> None:
        self._forward = forward
        self._columns = columns
        self._dummy_position = dummy_position
        self._device = device
        self._capture = capture
        self._captured: dict[int, tuple[_Padded, Work]] = {}

    def forward(self, step: Step) -> Tensor:
        """Final states ``[samples, hidden]`` of the sampled rows; to be read before the next step."""
        rows = len(step.tokens)
        if rows > _SIZES[-1] or step.states is not None or not all(isinstance(part, DecodePart) for part in step.parts):
            return self._forward(step)
        padded, replay = self._of_size(next(size for size in _SIZES if size >= rows))
        padded.load(step)
        return replay()[step.sampled]

    def _of_size(self, size: int) -> tuple[_Padded, Work]:
        if size not in self._captured:
            padded = _Padded(size, columns=self._columns, dummy_position=self._dummy_position, device=self._device)
            self._captured[size] = padded, self._capture(lambda: self._forward(padded.step))
        return self._captured[size]


class _Padded:
    """A decode step of ``size`` rows in tensors that stay; all dummies to begin with."""

    def __init__(self, size: int, *, columns: int, dummy_position: int, device: torch.device) -> None:
        self._dummy_position = dummy_position
        self._tables = torch.zeros((size, columns), dtype=torch.int64, device=device)
        self.step = Step(
            tokens=torch.zeros(size, dtype=torch.int64, device=device),
            positions=torch.full((size,), dummy_position, device=device),
            blocks=torch.full((size,), NOT_HERE, device=device),
            parts=(DecodePart(0, size, self._tables),),
            sampled=torch.arange(size, device=device),
        )

    def load(self, step: Step) -> None:
        """Take over ``step``; the other rows become dummies again. Old table entries behind a row's own stay."""
        rows = len(step.tokens)
        self.step.tokens[:rows] = step.tokens
        self.step.positions[:rows] = step.positions
        self.step.positions[rows:] = self._dummy_position
        self.step.blocks[:rows] = step.blocks
        self.step.blocks[rows:] = NOT_HERE
        for part in step.parts:
            assert isinstance(part, DecodePart), "only decode steps are padded"
            self._tables[part.start : part.stop, : part.tables.shape[1]] = part.tables
