"""All figures of one model: which cases there are, and who takes part in them on this machine."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import torch

from bench.engine.first_token import first_tokens
from bench.engine.kv_bytes import kv_bytes
from bench.engine.ours import Ours
from bench.engine.speed import Workload, compare
from bench.engine.timing import Clock, Subject
from bench.figures import Figure
from engine.model.catalogue import find_model
from engine.model.config import ModelError
from engine.model.hybrid_config import HybridConfig
from engine.model.source import ModelSource

__all__ = ["Plan", "measure"]

_BATCHES = (1, 8)
_DCP_SIZES = (1, 2, 4)
_LONG_PROMPT = 2048


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What is measured, how often, and whether in CPU seconds of this process."""

    model_path: str
    prompt_tokens: int
    new_tokens: int
    runs: int
    seed: int
    cpu_time: bool

    @property
    def clock(self) -> Clock:
        """The one that all subjects are timed by."""
        return time.process_time if self.cpu_time else time.perf_counter


def measure(plan: Plan, *, say: Callable[[str], None]) -> Iterator[Figure]:
    """Figure by figure; ``say`` is told what cannot be had here.

    Raises:
        ModelError: there is no such model, or none that attends to all its tokens.
    """
    torch.set_num_threads(1)
    source = _source(plan.model_path)
    name = Path(plan.model_path).name
    others = _others(source, plan.clock, say)
    for batch in _BATCHES:
        work = _workload(plan, source, batch=batch)
        with closing(_ours(source, work, plan.clock)) as ours:
            yield from compare(f"{name}, batch {batch}", [ours, *others], work)
    yield from _first_tokens(name, source, plan)
    yield from kv_bytes(name, source.config, tokens=_LONG_PROMPT, dcp_sizes=_DCP_SIZES)


def _source(model_path: str) -> ModelSource:
    source = find_model(model_path).source
    if source is None or isinstance(source.config, HybridConfig):
        raise ModelError(f"{model_path} is not measured: it keeps something else than keys and values of every token")
    return source


def _others(source: ModelSource, clock: Clock, say: Callable[[str], None]) -> list[Subject]:
    """transformers, where it is installed and can read the model."""
    if source.kind != "folder":
        say("only a model in a folder can be measured beside transformers")
        return []
    if importlib.util.find_spec("transformers") is None:
        say("transformers is not installed, so there is nobody to compare with")
        return []
    from bench.engine.theirs import Theirs

    return [Theirs(Path(source.path), clock=clock)]


def _workload(plan: Plan, source: ModelSource, *, batch: int) -> Workload:
    return Workload(
        vocabulary=source.config.vocab_size,
        batch=batch,
        prompt_tokens=plan.prompt_tokens,
        new_tokens=plan.new_tokens,
        runs=plan.runs,
        seed=plan.seed,
    )


def _ours(source: ModelSource, work: Workload, clock: Clock) -> Ours:
    context = source.config.max_context
    if work.longest > context:
        raise ModelError(f"sequences of {work.longest} tokens do not fit the model's context of {context}")
    return Ours(source, batch=work.batch, tokens=work.longest, clock=clock)


def _first_tokens(name: str, source: ModelSource, plan: Plan) -> Iterator[Figure]:
    work = msgspec.structs.replace(_workload(plan, source, batch=1), prompt_tokens=_LONG_PROMPT, new_tokens=1)
    with closing(_ours(source, work, plan.clock)) as ours:
        yield from first_tokens(f"{name}, {_LONG_PROMPT} tokens", ours, work)
