"""Time to the first token of a prompt that nobody has seen, and of the same prompt once more."""

from __future__ import annotations

from collections.abc import Iterator

from bench.engine.ours import PAGE_SIZE
from bench.engine.speed import Workload, draw_prompts
from bench.engine.timing import Subject
from bench.figures import Figure, figure

__all__ = ["first_tokens"]


def first_tokens(case: str, subject: Subject, work: Workload) -> Iterator[Figure]:
    """Seconds cold and cached, and how many times less the latter is, run by run."""
    cold, cached = [], []
    for run in range(work.runs):
        prompts = draw_prompts(work, run=run)
        first, again = (subject.play(prompts, new_tokens=1) for _ in range(2))
        at_least = work.batch * (work.prompt_tokens - PAGE_SIZE)
        assert first.cached_tokens == 0, f"{first.cached_tokens} tokens of a new prompt were in the cache"
        assert again.cached_tokens >= at_least, f"only {again.cached_tokens} tokens of a known prompt were in the cache"
        cold.append(first.prefill)
        cached.append(again.prefill)
    yield figure("engine", case, subject.name, "first token cold", [1000 * one for one in cold], unit="ms")
    yield figure("engine", case, subject.name, "first token cached", [1000 * one for one in cached], unit="ms")
    ratios = [slow / fast for slow, fast in zip(cold, cached, strict=True)]
    yield figure("engine", case, subject.name, "cold / cached", ratios, unit="x")
