"""Real ranks that answer with logits, fed chunk by chunk in random chunkings, batches and placements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

import torch
from torch import Tensor

from contract.geometry import Geometry
from engine.model.build import build_model
from engine.model.source import ModelSource
from engine.model.step import Step, plan_step
from engine.parallel.group import Group
from engine.parallel.layout import Layout
from engine.parallel.threads import ThreadWorld
from engine.request import SamplingParams
from engine.runner.base import Chunk, StateMoves

CPU = torch.device("cpu")


class ChunkedEngine:
    """Thread ranks with ``num_blocks`` blocks of cache; ``reference`` says what the logits must be: [tokens, vocab]."""

    def __init__(
        self,
        source: ModelSource,
        *,
        layout: Layout,
        geometry: Geometry,
        num_blocks: int,
        reference: Callable[[Sequence[int]], Tensor] | None = None,
        tolerance: float = 0.0,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.geometry = geometry
        self._num_blocks = num_blocks
        self._reference = reference
        self._tolerance = tolerance

        def build(group: Group) -> Callable[[Step], Tensor]:
            torch.set_num_threads(1)
            model = build_model(
                source,
                layout=layout,
                geometry=geometry,
                num_blocks=num_blocks,
                device=CPU,
                dtype=dtype,
                group=group,
                state_slots=num_blocks,
            )
            return lambda step: model.logits(model.forward(step))

        self.world = ThreadWorld(size=layout.tp_size, build=build)

    def run(self, chunks: Sequence[Chunk]) -> Tensor:
        """Logits after each chunk, the same on all ranks."""
        logits, *others = self.world.call(plan_step(chunks, self.geometry, device=CPU))
        assert all(torch.equal(logits, other) for other in others)
        return logits

    def chunk(self, tokens: Sequence[int], *, start: int, stop: int, table: Sequence[int]) -> Chunk:
        """A sequence's states are in the slot with the number of its first block; models without states need none."""
        return Chunk(
            request_id=0,
            tokens=tokens[start:stop],
            context_length=start,
            block_table=table[: self.geometry.blocks_for(stop)],
            sampling=SamplingParams(),
            states=StateMoves(source=table[0] if start else None, saves=((stop - start, table[0]),)),
        )

    def check(self, prompts: Sequence[Sequence[int]], random: Random) -> None:
        """Compute all prompts together, in random chunks and blocks; compare wherever a chunk ends."""
        free = random.sample(range(self._num_blocks), self._num_blocks)
        tables = [[free.pop() for _ in range(self.geometry.blocks_for(len(prompt)))] for prompt in prompts]
        assert self._reference is not None, "nothing to compare with"
        expected = [self._reference(prompt) for prompt in prompts]
        done = [0] * len(prompts)
        while unfinished := [n for n, prompt in enumerate(prompts) if done[n] < len(prompt)]:
            batch = random.sample(unfinished, random.randint(1, len(unfinished)))
            stops = [done[n] + random.choice([1, random.randint(1, len(prompts[n]) - done[n])]) for n in batch]
            logits = self.run(
                [
                    self.chunk(prompts[n], start=done[n], stop=stop, table=tables[n])
                    for n, stop in zip(batch, stops, strict=True)
                ]
            )
            for n, stop, actual in zip(batch, stops, logits, strict=True):
                self.compare(actual, expected[n][stop - 1])
                done[n] = stop

    def compare(self, actual: Tensor, expected: Tensor) -> None:
        torch.testing.assert_close(actual, expected, atol=self._tolerance, rtol=0)
