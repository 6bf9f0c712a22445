"""``python -m bench tracing``: the CPU that recording costs a router, and that reading a trace takes.

Requests of eight lanes share nine tenths of their prompts; blocks are 64 wide, so that keys are kept at 64 and at 16.
A batch stores four such blocks; what a plain stream takes for the same batches is taken off. All of it is CPU time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import NoReturn

from bench.figures import Figure, as_json, as_text, figure
from bench.flag_values import at_least
from contract.descriptor import LaneAddress
from contract.events import BlockStored, Dialect, encode_batch
from contract.framing import Frame
from router.choice.chooser import Chooser, Decision
from router.choice.load import LaneLoad
from router.choice.policy import POLICIES
from router.choice.recent import RecentPrompts
from router.choice.speed import FleetSpeed
from router.fleet.lane import Lane
from router.front.plan import Plan
from router.front.request import parse_request
from router.front.route import Route
from router.intake.index import BlockIndex, LaneHandle
from router.intake.stream import LaneStream
from router.prompt import Prompt
from router.proof.report import Report
from router.trace.chunk import TraceFileError
from router.trace.reader import TraceReader
from router.trace.recorder import Recorder, recording
from router.trace.records import StreamJoined
from router.trace.replayer import Replayer
from router.trace.request_recorder import RequestRecorder
from router.trace.taped_stream import TapedStream

__all__ = ["add_command", "measure"]

BENCH, SUBJECT = "tracing", "kvsteer"
LANES, WIDTH, BATCH_BLOCKS = 8, 64, 4
PROMPT_TOKENS = (200, 8192)
_SHARED = 0.9
_VOCABULARY = 100_000

Planned = tuple[Plan, Decision[Lane]]


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``tracing`` to the commands."""
    parser = commands.add_parser("tracing", help="measure what recording costs a router, and reading a trace")
    parser.add_argument("--runs", type=at_least(1), default=5, help="repetitions of each (default: 5)")
    parser.add_argument(
        "--each", type=at_least(1), default=300, help="requests, and batches, of a repetition (default: 300)"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    with tempfile.TemporaryDirectory() as folder:
        for one in measure(Path(folder), runs=args.runs, each=args.each):
            print(as_json(one) if args.json else as_text(one), flush=True)
    return 0


def measure(folder: Path, *, runs: int, each: int) -> Iterator[Figure]:
    """All figures, from traces written into ``folder``."""
    lanes, index = asyncio.run(_lanes())
    for tokens in PROMPT_TOKENS:
        case = f"recording a request of {tokens} tokens"
        taken = []
        for run in range(runs):  # prompts anew, since they keep the keys that were hashed
            planned = list(_requests(lanes, index, tokens=tokens, count=each, chance=Random(run)))
            taken.append(_record_requests(folder / f"{tokens}-{run}.kvtrace", planned))
        yield from _figures(case, taken, each)
    payloads = list(_payloads(each, Random(1)))
    files = [folder / f"batches-{run}.kvtrace" for run in range(runs)]
    taken = [_record_batches(file, payloads) for file in files]
    yield from _figures(f"recording a batch of {BATCH_BLOCKS * WIDTH} tokens", taken, each)
    read = [_cpu(partial(_read, file)) for file in files]
    yield figure(BENCH, "reading these batches", SUBJECT, "cpu", _micro(read, each), unit="us")
    replayed = [_cpu(partial(_replay, file)) for file in files]
    yield figure(BENCH, "replaying these batches", SUBJECT, "cpu", _micro(replayed, each), unit="us")


def _figures(case: str, taken: Sequence[tuple[float, int]], each: int) -> Iterator[Figure]:
    yield figure(BENCH, case, SUBJECT, "cpu", _micro([seconds for seconds, _ in taken], each), unit="us")
    yield figure(BENCH, case, SUBJECT, "size", [size / each for _, size in taken], unit="B")


def _micro(seconds: Sequence[float], each: int) -> list[float]:
    return [one / each * 1e6 for one in seconds]


def _cpu(work: Callable[[], object]) -> float:
    begun = time.process_time()
    work()
    return time.process_time() - begun


# Requests


async def _lanes() -> tuple[list[Lane], BlockIndex]:
    index, speed = BlockIndex(), FleetSpeed()
    lanes = [
        Lane(
            url=f"http://10.0.0.{number}:30000",
            dp_rank=0,
            index=index,
            speed=speed.replica(),
            load=LaneLoad(),
            recent=RecentPrompts(),
            subscribe=_never,
        )
        for number in range(LANES)
    ]
    for lane in lanes:
        await lane.connect(None, advertised_block_size=WIDTH)
    return lanes, index


def _never(address: LaneAddress, topic: str, handle: LaneHandle) -> NoReturn:
    raise AssertionError("lanes without a stream are not subscribed to")


def _requests(
    lanes: Sequence[Lane], index: BlockIndex, *, tokens: int, count: int, chance: Random
) -> Iterator[Planned]:
    chooser = Chooser(index, POLICIES["kv"](), seed=0, now=0.0)
    shared = chance.choices(range(_VOCABULARY), k=int(tokens * _SHARED))
    for number in range(count):
        ids = shared + chance.choices(range(_VOCABULARY), k=tokens - len(shared))
        prompt = Prompt(ids[:-1])
        request = parse_request(Route.COMPLETIONS, json.dumps({"prompt": ids, "stream": True}).encode(), max_ids=tokens)
        decision = chooser.choose(prompt, prompt_tokens=tokens, lanes=lanes, now=float(number))
        yield Plan(request=request, prompt=prompt, prompt_tokens=tokens, lanes=lanes), decision


def _record_requests(file: Path, planned: Sequence[Planned]) -> tuple[float, int]:
    with recording(file, source="bench", failed=_failed) as recorder:
        tape = RequestRecorder(recorder, with_tokens=False)
        return _cpu(lambda: _tell(tape, planned)), file.stat().st_size


def _tell(tape: RequestRecorder, planned: Sequence[Planned]) -> None:
    for plan, decision in planned:
        attempt = tape.routed(plan, decision)
        tape.first_token(attempt)
        tape.served(attempt, first_after=0.1, report=Report(plan.prompt_tokens, 0, 100))


# Batches


def _payloads(count: int, chance: Random) -> Iterator[bytes]:
    for number in range(count):
        event = BlockStored(
            block_hashes=[chance.getrandbits(64) for _ in range(BATCH_BLOCKS)],
            parent_block_hash=None,
            token_ids=chance.choices(range(_VOCABULARY), k=BATCH_BLOCKS * WIDTH),
            block_size=WIDTH,
            medium="GPU",
        )
        yield encode_batch([event], ts=float(number), dp_rank=None, dialect=Dialect.SGLANG)


def _record_batches(file: Path, payloads: Sequence[bytes]) -> tuple[float, int]:
    with recording(file, source="bench", failed=_failed) as recorder:
        taped = _joined(recorder)
        plain = _cpu(lambda: _feed(LaneStream(can_replay=True), payloads))
        return _cpu(lambda: _feed(taped, payloads)) - plain, file.stat().st_size


def _joined(recorder: Recorder) -> TapedStream:
    lane = recorder.lane("http://10.0.0.1:30000", 0)
    recorder.note(
        StreamJoined(at=0.0, lane=lane, endpoint="tcp://10.0.0.1:5557", topic="kv", can_replay=True, block_size=WIDTH)
    )
    return TapedStream(recorder, lane, can_replay=True)


def _feed(stream: LaneStream, payloads: Sequence[bytes]) -> None:
    for seq, payload in enumerate(payloads):
        stream.live(Frame(b"kv", seq, payload), now=float(seq))


def _read(file: Path) -> int:
    return sum(1 for _ in TraceReader(file))


def _replay(file: Path) -> None:
    replayer = Replayer()
    for record in TraceReader(file):
        replayer.feed(record)


def _failed(error: TraceFileError) -> NoReturn:
    raise error
