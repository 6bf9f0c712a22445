"""``python -m bench ranks``: what it costs to hand ranks a step, and to have them exchange tensors.

A step of eight decoding requests goes out and comes back with nothing done in between; a collective is timed on rank 0,
with the shapes of one layer of SmolLM2 at that step: output and log-sum-exp of nine heads, and hidden states.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing

import msgspec

from bench.figures import Figure, as_json, as_text
from bench.flag_values import at_least
from engine.parallel.processes import ProcessWorld
from engine.request import SamplingParams
from engine.runner.base import Chunk
from engine.runner.step_wire import StepWriter

__all__ = ["add_command", "measure"]

BENCH = "ranks"
_REQUESTS = 8
_CONTEXT, _BLOCK = 2048, 16
_SHAPES = {"gather": (_REQUESTS, 9, 65), "sum": (_REQUESTS, 576)}


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``ranks`` to the commands."""
    parser = commands.add_parser("ranks", help="measure what handing over steps and exchanging tensors costs")
    parser.add_argument("--ranks", type=at_least(1), nargs="+", default=[2, 4], help="sizes of worlds (default: 2 4)")
    parser.add_argument("--rounds", type=at_least(2), default=300, help="repetitions of each (default: 300)")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    for size in args.ranks:
        for one in measure(size, rounds=args.rounds):
            print(as_json(one) if args.json else as_text(one), flush=True)
    return 0


def measure(size: int, *, rounds: int) -> Iterator[Figure]:
    """What ``size`` ranks cost, as threads and as processes."""
    from engine.parallel.costs import timed_rank  # brings torch
    from engine.parallel.threads import ThreadWorld

    threads: ThreadWorld[bytes, bytes] = ThreadWorld(size=size, build=timed_rank)
    with closing(threads):
        yield from _costs(threads.call, subject="threads", size=size, rounds=rounds)
    with closing(ProcessWorld(size=size, build=timed_rank)) as processes:
        yield from _costs(processes.call, subject="processes", size=size, rounds=rounds)


def _costs(call: Callable[[bytes], list[bytes]], *, subject: str, size: int, rounds: int) -> Iterator[Figure]:
    ranks, step = f"{size} rank{'s' * (size > 1)}", decode_step()
    yield from _figures(f"{ranks}, hand over a step", subject, [_seconds(call, step) for _ in range(rounds)])
    for collective, shape in _SHAPES.items():
        trial = msgspec.json.encode({"collective": collective, "shape": shape, "rounds": rounds})
        yield from _figures(f"{ranks}, {collective}", subject, msgspec.json.decode(call(trial)[0], type=list[float]))


def decode_step() -> bytes:
    """The second of two decode steps: what is new since the first."""
    writer = StepWriter()
    tables = [[request * 1000 + block for block in range(_CONTEXT // _BLOCK + 1)] for request in range(_REQUESTS)]
    for _ in range(2):
        payload = writer.write([_chunk(request, table) for request, table in enumerate(tables)])
    return payload


def _chunk(request_id: int, table: list[int]) -> Chunk:
    return Chunk(
        request_id=request_id,
        tokens=[0],
        context_length=_CONTEXT,
        block_table=table,
        sampling=SamplingParams(temperature=0.0),
    )


def _seconds(call: Callable[[bytes], list[bytes]], task: bytes) -> float:
    started = time.perf_counter()
    call(task)
    return time.perf_counter() - started


def _figures(case: str, subject: str, seconds: Sequence[float]) -> Iterator[Figure]:
    for metric, value in (("p50", statistics.median(seconds)), ("p95", statistics.quantiles(seconds, n=20)[-1])):
        yield Figure(
            bench=BENCH,
            case=case,
            subject=subject,
            metric=metric,
            value=round(value * 1e6, 1),
            unit="us",
            runs=len(seconds),
        )
