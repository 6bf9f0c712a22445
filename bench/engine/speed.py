"""Tokens a second, by the subjects' clock: all of them play the same prompts in turn, run after run."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import msgspec

from bench.engine.timing import Subject, Timing
from bench.figures import Figure, figure

__all__ = ["Workload", "compare", "draw_prompts"]


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """``batch`` prompts of ``prompt_tokens`` random ids below ``vocabulary``, new ones in every run."""

    vocabulary: int
    batch: int
    prompt_tokens: int
    new_tokens: int
    runs: int
    seed: int

    @property
    def longest(self) -> int:
        """Tokens of a prompt and its answer."""
        return self.prompt_tokens + self.new_tokens


def draw_prompts(work: Workload, *, run: int) -> list[list[int]]:
    """The prompts of one run."""
    draw = random.Random(f"{work.seed} {run}")
    return [[draw.randrange(work.vocabulary) for _ in range(work.prompt_tokens)] for _ in range(work.batch)]


def compare(case: str, subjects: Sequence[Subject], work: Workload) -> Iterator[Figure]:
    """Every subject's figures, and the first one's as multiples of the others', run by run."""
    _warm_up(subjects, work)
    timings: dict[str, list[Timing]] = {subject.name: [] for subject in subjects}
    for run in range(work.runs):
        prompts = draw_prompts(work, run=run)
        for subject in subjects:
            timing = subject.play(prompts, new_tokens=work.new_tokens)
            assert timing.cached_tokens == 0, f"{subject.name} had {timing.cached_tokens} tokens in its cache"
            timings[subject.name].append(timing)
    speeds = {name: _speeds(ones, work) for name, ones in timings.items()}
    for metric in ("prefill", "decode"):
        yield from _figures(case, metric, {name: speed[metric] for name, speed in speeds.items()})


def _warm_up(subjects: Sequence[Subject], work: Workload) -> None:
    """Once round, so that nobody's first run pays for what is built on first use."""
    prompts = draw_prompts(work, run=-1)
    for subject in subjects:
        subject.play(prompts, new_tokens=2)


def _speeds(timings: Sequence[Timing], work: Workload) -> dict[str, list[float]]:
    return {
        "prefill": [work.batch * work.prompt_tokens / one.prefill for one in timings],
        "decode": [work.batch * (work.new_tokens - 1) / one.decode for one in timings],
    }


def _figures(case: str, metric: str, speeds: dict[str, list[float]]) -> Iterator[Figure]:
    for name, values in speeds.items():
        yield figure("engine", case, name, metric, values, unit="tok/s")
    (name, ours), *others = speeds.items()
    for other, theirs in others:
        ratios = [mine / its for mine, its in zip(ours, theirs, strict=True)]
        yield figure("engine", case, f"{name} / {other}", f"{metric} ratio", ratios, unit="x")
