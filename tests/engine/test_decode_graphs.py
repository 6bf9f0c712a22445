"""Decode steps in padded buffers: the same tokens as without, on every rank. Here "replay" computes once more.

Capturing itself takes a GPU; what is captured, with what in the buffers, does not.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

import pytest
import torch
from torch import Tensor

from bench.engine_answers import NUM_BLOCKS, greedy_answers
from contract.geometry import Geometry
from engine.kernels.slot_mapping import NOT_HERE
from engine.model.config import TINY
from engine.model.source import ModelSource
from engine.model.step import Step, plan_step
from engine.parallel.group import Group
from engine.parallel.layout import Layout
from engine.parallel.threads import ThreadWorld
from engine.request import SamplingParams
from engine.runner.base import Chunk
from engine.runner.decode_graphs import DecodeGraphs
from engine.runner.rank_plan import RankPlan
from engine.runner.torch_rank import StepTask, TorchRank

CPU = torch.device("cpu")
GREEDY = SamplingParams(temperature=0.0)
Work = Callable[[], Tensor]


class Captures:
    """Stands for a GPU's graphs: runs the work when it captures it, and again whenever it is replayed."""

    def __init__(self) -> None:
        self.captured = 0
        self.replayed = 0

    def __call__(self, work: Work) -> Work:
        work()
        self.captured += 1

        def replay() -> Tensor:
            self.replayed += 1
            return work()

        return replay


def answers(dcp_size: int, captures: list[Captures] | None) -> list[list[int]]:
    geometry = Geometry(page_size=3, dcp_size=dcp_size)
    layout = Layout(tp_size=dcp_size, dcp_size=dcp_size)
    source = ModelSource(config=TINY)
    plan = RankPlan(source=source, layout=layout, geometry=geometry, num_blocks=NUM_BLOCKS, device="cpu")

    def build(group: Group) -> TorchRank:
        return TorchRank(plan, group, capture=captures[group.rank] if captures else None)

    world: ThreadWorld[StepTask, list[int]] = ThreadWorld(size=dcp_size, build=build)
    with closing(world):
        return greedy_answers(lambda chunks: world.call(StepTask.of(chunks, plan, device=CPU))[0], geometry)


@pytest.mark.parametrize("dcp_size", [1, 2])
def test_padded_decode_steps_give_the_same_tokens_and_are_captured_once_a_size(dcp_size: int) -> None:
    captures = [Captures() for _ in range(dcp_size)]
    assert answers(dcp_size, captures) == answers(dcp_size, None)
    # Two steps have prompts in them; the other four are of three rows, on every rank.
    assert [(one.captured, one.replayed) for one in captures] == [(1, 4)] * dcp_size


def decode_step(*contexts: int) -> Step:
    """One token each of sequences with so many tokens behind them, all in blocks 10, 11, ... of 3 tokens."""
    chunks = [
        Chunk(
            request_id=index,
            tokens=[65],
            context_length=context,
            block_table=range(10, 11 + context // 3),
            sampling=GREEDY,
        )
        for index, context in enumerate(contexts)
    ]
    return plan_step(chunks, Geometry(page_size=3), device=CPU)


class Recorder:
    """A forward pass that writes down where the rows of the last step stand and where they are stored."""

    def __init__(self) -> None:
        self.positions: list[int] = []
        self.blocks: list[int] = []

    def __call__(self, step: Step) -> Tensor:
        self.positions, self.blocks = step.positions.tolist(), step.blocks.tolist()
        return torch.arange(len(step.tokens)).unsqueeze(1)


def test_rows_left_over_are_dummies_that_store_nothing_even_after_a_fuller_step() -> None:
    recorder = Recorder()
    graphs = DecodeGraphs(recorder, columns=8, dummy_position=2, device=CPU, capture=lambda work: work)
    assert len(graphs.forward(decode_step(4, 5, 6, 7))) == 4
    assert NOT_HERE not in recorder.blocks
    assert graphs.forward(decode_step(9, 1, 2)).tolist() == [[2], [0], [1]]  # rows go by length, samples by chunk
    assert recorder.positions == [1, 2, 9, 2]
    assert recorder.blocks == [10, 10, 13, NOT_HERE]


def test_steps_with_more_rows_than_the_largest_graph_are_computed_as_they_are() -> None:
    recorder, captures = Recorder(), Captures()
    graphs = DecodeGraphs(recorder, columns=8, dummy_position=2, device=CPU, capture=captures)
    assert len(graphs.forward(decode_step(*range(20), *range(20), *range(20), *range(5)))) == 65
    assert (len(recorder.blocks), captures.captured) == (65, 0)
