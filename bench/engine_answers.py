"""What a runner answers to a few prompts: greedy tokens, by which runners of one model are told alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing

from contract.geometry import Geometry
from engine.model.config import TINY
from engine.model.source import ModelSource
from engine.parallel.layout import Layout
from engine.request import SamplingParams
from engine.runner.base import Chunk
from engine.runner.process_runner import ProcessRunner
from engine.runner.rank_plan import RankPlan

__all__ = ["NUM_BLOCKS", "answers_of_processes", "greedy_answers"]

_GREEDY = SamplingParams(temperature=0.0)
_STEPS = 6
_CONTEXT = 64
_PROMPTS = ([65], [66, 67, 68, 69], [70 + token for token in range(40)])
"""The longest starts one step after the others."""

NUM_BLOCKS = len(_PROMPTS) * _CONTEXT
"""Enough for all of them at any geometry."""


def greedy_answers(run: Callable[[Sequence[Chunk]], Sequence[int | None]], geometry: Geometry) -> list[list[int]]:
    """The answers that ``run`` gives step by step, out of a cache of ``geometry`` with ``NUM_BLOCKS`` blocks."""
    sequences = [list(prompt) for prompt in _PROMPTS]
    columns = geometry.blocks_for(_CONTEXT)
    tables = [range(columns * index, columns * (index + 1)) for index in range(len(_PROMPTS))]  # block 0 is in use
    done = [0] * len(_PROMPTS)
    for step in range(_STEPS):
        running = [0, 1, 2] if step else [1, 0]
        chunks = [
            Chunk(
                request_id=index,
                tokens=sequences[index][done[index] :],
                context_length=done[index],
                block_table=tables[index],
                sampling=_GREEDY,
            )
            for index in running
        ]
        for index, token in zip(running, run(chunks), strict=True):
            assert token is not None, "every chunk samples"
            done[index] = len(sequences[index])
            sequences[index].append(token)
    return [sequence[len(prompt) :] for sequence, prompt in zip(sequences, _PROMPTS, strict=True)]


def answers_of_processes(device: str, *, ranks: int) -> list[list[int]]:
    """Those of the built-in model on so many rank processes, which share the tokens of each sequence; in float32.

    Raises:
        RankFailedError: a rank did not start, or failed.
    """
    geometry = Geometry(page_size=3, dcp_size=ranks)
    plan = RankPlan(
        source=ModelSource(config=TINY),
        layout=Layout(tp_size=ranks, dcp_size=ranks),
        geometry=geometry,
        num_blocks=NUM_BLOCKS,
        device=device,
        dtype="float32",
    )
    with closing(ProcessRunner(plan)) as runner:
        return greedy_answers(runner.run, geometry)
