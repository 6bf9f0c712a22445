"""What the index bench runs, in which order: all subjects of a cell one after the other, and all cells in each round.

So whatever the machine does meanwhile, it does to everybody. Each trial is a process of its own.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.figures import Figure, figure
from bench.index.service_trial import dynamo_indexer, our_service
from bench.index.trial import HELD
from bench.tether import tethered

__all__ = ["FULL", "QUICK", "Cell", "Plan", "TrialError", "measure"]

BENCH = "index"
KVSTEER, TREE, INDEXER = "kvsteer", "dynamo-radixtree", "dynamo-indexer"
_ROOT = Path(__file__).parent.parent.parent
_Sample = tuple[str, str, str, str, float]  # case, metric, unit, subject, value


class TrialError(RuntimeError):
    """A trial that came to nothing; the message says which, and why."""


@dataclass(frozen=True)
class Cell:
    """One size of fleet and block."""

    lanes: int
    block: int

    def __str__(self) -> str:
        return f"{self.lanes} lanes, block {self.block}"


@dataclass(frozen=True)
class Plan:
    """``in_process`` cells are filled, asked and weighed; ``over_zmq`` are only filled, by a service of its own."""

    rounds: int
    entries: int
    in_process: Sequence[Cell]
    over_zmq: Sequence[Cell]
    hash_tokens: Sequence[int]
    hash_blocks: Sequence[int]


FULL = Plan(
    rounds=3,
    entries=1_000_000,
    in_process=[Cell(16, 16), Cell(64, 16), Cell(16, 64), Cell(64, 64)],
    over_zmq=[Cell(16, 16), Cell(64, 16), Cell(16, 64)],
    hash_tokens=[1024, 8192, 32768, 131072],
    hash_blocks=[16, 64],
)
QUICK = Plan(
    rounds=1,
    entries=20_000,
    in_process=[Cell(4, 64)],
    over_zmq=[Cell(4, 16)],
    hash_tokens=[1024],
    hash_blocks=[16],
)


def measure(plan: Plan, *, dynamo: Path | None, say: Callable[[str], None]) -> Iterator[Figure]:
    """Figures of every subject that is there; ``dynamo`` is the Python of Dynamo's environment.

    Raises:
        TrialError: a trial failed.
    """
    samples: dict[tuple[str, str, str], dict[str, list[float]]] = {}
    for number in range(plan.rounds):
        say(f"round {number + 1} of {plan.rounds}")
        for case, metric, unit, subject, value in _round(plan, dynamo):
            samples.setdefault((metric, case, unit), {}).setdefault(subject, []).append(value)
    for (metric, case, unit), values in sorted(samples.items(), key=lambda item: _ORDER.index(item[0][0])):
        for subject, runs in values.items():
            yield figure(BENCH, case, subject, metric, runs, unit=unit)
        for peer in values.keys() - {KVSTEER}:
            ratios = [ours / theirs for ours, theirs in zip(values[KVSTEER], values[peer], strict=True)]
            yield figure(BENCH, case, f"{KVSTEER}/{peer}", metric, ratios, unit="ratio")


_ORDER = ("hash", "match", "look up", "ingest", "bytes")


def _round(plan: Plan, dynamo: Path | None) -> Iterator[_Sample]:
    in_process = {KVSTEER: ("bench.index.ours", Path(sys.executable))}
    if dynamo is not None:
        in_process[TREE] = ("bench.index.dynamo_tree", dynamo)
    for block in plan.hash_blocks:
        for subject, (module, python) in in_process.items():
            yield from _hash(subject, _trial(python, module, "hash", block, tokens=plan.hash_tokens), block)
    for cell in plan.in_process:
        for subject, (module, python) in in_process.items():
            sizes = {"lanes": [cell.lanes], "entries": [plan.entries]}
            yield from _index(subject, _trial(python, module, "index", cell.block, **sizes), cell)
    for cell in plan.over_zmq:
        yield from _service(KVSTEER, our_service(lanes=cell.lanes, block=cell.block, entries=plan.entries), cell)
        if dynamo is not None:
            found = dynamo_indexer(dynamo, lanes=cell.lanes, block=cell.block, entries=plan.entries)
            yield from _service(INDEXER, found, cell)


def _trial(python: Path, module: str, trial: str, block: int, **sizes: Sequence[int]) -> dict[str, float]:
    command = [str(python), "-m", module, trial, "--block", str(block)]
    for name, values in sizes.items():
        command += [f"--{name}", *map(str, values)]
    done = subprocess.run(tethered(command), cwd=_ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["nothing was said"])[-1]
        raise TrialError(f"{' '.join(command)} ended with {done.returncode}: {last}")
    found: dict[str, float] = json.loads(done.stdout)
    return found


def _hash(subject: str, found: Mapping[str, float], block: int) -> Iterator[_Sample]:
    for tokens, seconds in found.items():
        yield f"{tokens} tokens, block {block}", "hash", "us", subject, seconds * 1e6


def _index(subject: str, found: Mapping[str, float], cell: Cell) -> Iterator[_Sample]:
    for held in HELD:
        yield f"{cell}, {held:.0%} held", "match", "us", subject, found[f"match_s {held}"] * 1e6
        yield f"{cell}, {held:.0%} held", "look up", "us", subject, found[f"look_up_s {held}"] * 1e6
    yield f"{cell}, in process", "ingest", "ns", subject, found["ingest_s"] * 1e9
    yield f"{cell}, in process", "bytes", "B", subject, found["bytes"]


def _service(subject: str, found: Mapping[str, float], cell: Cell) -> Iterator[_Sample]:
    yield f"{cell}, over ZMQ", "ingest", "ns", subject, found["ingest_s"] * 1e9
    yield f"{cell}, over ZMQ", "bytes", "B", subject, found["bytes"]
