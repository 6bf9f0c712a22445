"""Our engine without its server and its thread: scheduler, prefix cache and one rank, step after step."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import torch

from bench.engine.timing import Clock, Timing
from contract.geometry import Geometry
from engine.model.source import ModelSource
from engine.parallel.layout import Layout
from engine.request import Output, SamplingParams
from engine.runner.torch_runner import TorchRunner
from engine.scheduler import Limits, Scheduler

__all__ = ["PAGE_SIZE", "Ours"]

PAGE_SIZE = 16  # the engine's default


class Ours:
    """On the CPU, in float32, with a cache for ``batch`` sequences of ``tokens``, which keeps what it can.

    All prompts are prefilled in one step, so that prefill and decode can be told apart.
    """

    name = "kvsteer"

    def __init__(self, source: ModelSource, *, batch: int, tokens: int, clock: Clock) -> None:
        self._clock = clock
        geometry = Geometry(page_size=PAGE_SIZE)
        blocks = batch * (geometry.blocks_for(tokens) + 1)  # the scheduler keeps one free for each that runs
        limits = Limits(context_length=tokens, max_running=batch, max_waiting=batch, prefill_tokens=batch * tokens)
        self._scheduler = Scheduler(geometry=geometry, total_blocks=blocks, limits=limits)
        self._runner = TorchRunner(
            source=source,
            layout=Layout(),
            geometry=geometry,
            num_blocks=blocks,
            device=torch.device("cpu"),
            dtype="float32",
        )
        self._ids = itertools.count()

    def play(self, prompts: Sequence[Sequence[int]], *, new_tokens: int) -> Timing:
        """Answer ``prompts`` as `Subject` says."""
        sampling = SamplingParams(max_new_tokens=new_tokens, temperature=0.0, ignore_eos=True)
        started = self._clock()
        for prompt in prompts:
            self._scheduler.add(next(self._ids), prompt, sampling)
        outputs = self._step()
        first = self._clock()
        assert len(outputs) == len(prompts), f"{len(outputs)} of {len(prompts)} prompts were answered in the first step"
        while not self._scheduler.idle:
            self._step()
        return Timing(
            prefill=first - started,
            decode=self._clock() - first,
            cached_tokens=sum(output.cached_tokens for output in outputs.values()),
        )

    def close(self) -> None:
        """End the rank."""
        self._runner.close()

    def _step(self) -> Mapping[int, Output]:
        chunks = self._scheduler.schedule()
        outputs = self._scheduler.commit(self._runner.run(chunks))
        self._scheduler.take_events()
        return outputs
