"""``python -m bench ranks``: what it costs to hand ranks a step, and to have them exchange tensors.

A step of eight decoding requests goes out and comes back with nothing done in between; a collective is timed on rank 0,
with the shapes of one layer of SmolLM2 at that step: output and log-sum-exp of nine heads, and hidden states.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing

import msgspec

from engine.parallel.processes import ProcessWorld
from engine.request import SamplingParams
from engine.runner.base import Chunk
from engine.runner.step_wire import StepWriter

__all__ = ["Cost", "add_command", "measure"]

_REQUESTS = 8
_CONTEXT, _BLOCK = 2048, 16
_SHAPES = {"gather": (_REQUESTS, 9, 65), "sum": (_REQUESTS, 576)}


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that ``ranks`` ranks of a ``kind`` do, in microseconds."""

    kind: str
    ranks: int
    what: str
    p50_us: float
    p95_us: float


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``ranks`` to the commands."""
    parser = commands.add_parser("ranks", help="measure what handing over steps and exchanging tensors costs")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4], help="sizes of worlds (default: 2 4)")
    parser.add_argument("--rounds", type=int, default=300, help="repetitions of each (default: 300)")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    for size in args.ranks:
        for cost in measure(size, rounds=args.rounds):
            print(json.dumps(msgspec.to_builtins(cost)) if args.json else _line(cost), flush=True)
    return 0


def _line(cost: Cost) -> str:
    return f"{cost.ranks} {cost.kind:<9}  {cost.what:<15}  p50 {cost.p50_us:7.0f} us   p95 {cost.p95_us:7.0f} us"


def measure(size: int, *, rounds: int) -> Iterator[Cost]:
    """The costs of ``size`` ranks, as threads and as processes."""
    from engine.parallel.costs import timed_rank  # brings torch
    from engine.parallel.threads import ThreadWorld

    threads: ThreadWorld[bytes, bytes] = ThreadWorld(size=size, build=timed_rank)
    with closing(threads):
        yield from _costs(threads.call, kind="threads", size=size, rounds=rounds)
    with closing(ProcessWorld(size=size, build=timed_rank)) as processes:
        yield from _costs(processes.call, kind="processes", size=size, rounds=rounds)


def _costs(call: Callable[[bytes], list[bytes]], *, kind: str, size: int, rounds: int) -> Iterator[Cost]:
    step = decode_step()
    yield _cost([_seconds(call, step) for _ in range(rounds)], kind=kind, size=size, what="hand over a step")
    for collective, shape in _SHAPES.items():
        trial = msgspec.json.encode({"collective": collective, "shape": shape, "rounds": rounds})
        yield _cost(msgspec.json.decode(call(trial)[0], type=list[float]), kind=kind, size=size, what=collective)


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


def _cost(seconds: Sequence[float], *, kind: str, size: int, what: str) -> Cost:
    p50, p95 = statistics.median(seconds), statistics.quantiles(seconds, n=20)[-1]
    return Cost(kind=kind, ranks=size, what=what, p50_us=round(p50 * 1e6, 1), p95_us=round(p95 * 1e6, 1))
