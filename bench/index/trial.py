"""One trial: an index in a fresh process is filled, asked, and weighed. Runs in the peer's Python too."""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import statistics
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from bench.index.subject import Subject
from bench.index.workload import Workload, plain_ids

__all__ = ["HELD", "main", "resident_bytes"]

HELD = (0.5, 0.95)
CALLS, PROMPTS = 1200, 200
CHUNK = 1000
WARM_CHUNKS = 3
TOKENS_A_TRIAL = 1_000_000


def main(build: Callable[[int, int], Subject]) -> None:
    """Run the trial that the command line names and print its figures; ``build`` takes lanes and block."""
    parser = argparse.ArgumentParser()
    parser.add_argument("trial", choices=["hash", "index"])
    parser.add_argument("--lanes", type=int, default=1)
    parser.add_argument("--block", type=int, required=True)
    parser.add_argument("--entries", type=int, default=0)
    parser.add_argument("--tokens", type=int, nargs="*", default=[])
    args = parser.parse_args()
    subject = build(args.lanes, args.block)
    if args.trial == "hash":
        print(json.dumps({str(count): _hash_seconds(subject, count) for count in args.tokens}))
    else:
        work = Workload(lanes=args.lanes, block=args.block, entries=args.entries)
        print(json.dumps(_fill(subject, work) | _ask(subject, work)))


def _hash_seconds(subject: Subject, count: int) -> float:
    return _seconds(subject.keys, [plain_ids(count)], calls=max(3, TOKENS_A_TRIAL // count))


def _fill(subject: Subject, work: Workload) -> dict[str, float]:
    """CPU seconds and bytes for each entry. Some events are made before, so that their memory is not counted."""
    for events in itertools.islice(_chunks(map(subject.prepare, work.events())), WARM_CHUNKS):
        del events
    before, seconds = resident_bytes(), 0.0
    for events in _chunks(map(subject.prepare, work.events())):
        started = time.process_time()
        for event in events:
            subject.apply(event)
        seconds += time.process_time() - started
        del events
    gc.collect()
    return {"ingest_s": seconds / work.total, "bytes": (resident_bytes() - before) / work.total}


def _ask(subject: Subject, work: Workload) -> dict[str, float]:
    found = {}
    for held in HELD:
        prompts = work.prompts(held=held, count=PROMPTS)
        for prompt in prompts:
            tokens = subject.match(prompt.tokens).get(prompt.lane)
            assert tokens == prompt.blocks * work.block, f"{tokens} tokens matched, {prompt.blocks} blocks are held"
        ids = [prompt.tokens for prompt in prompts]
        found[f"match_s {held}"] = _seconds(subject.match, ids, calls=CALLS)
        found[f"look_up_s {held}"] = _seconds(subject.look_up, [subject.named(one) for one in ids], calls=CALLS)
    return found


def _seconds(call: Callable[[Any], object], arguments: list[Any], *, calls: int) -> float:
    """The median duration of a call."""
    call(arguments[0])
    durations = []
    for argument in itertools.islice(itertools.cycle(arguments), calls):
        started = time.perf_counter()
        call(argument)
        durations.append(time.perf_counter() - started)
    return statistics.median(durations)


def _chunks(events: Iterable[Any]) -> Iterable[list[Any]]:
    rest = iter(events)
    while chunk := list(itertools.islice(rest, CHUNK)):
        yield chunk


def resident_bytes(pid: int | str = "self") -> int:
    """Memory that a process has in RAM, as Linux counts it."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * 4096
